from __future__ import annotations

import pytest

from quicksilver.cluster.proxy.config import Address, RouteConfig
from quicksilver.errors import InvalidRequest


def test_addresses_are_scheme_host_and_port() -> None:
    assert Address.parse("http://gpu-a:8480") == Address("gpu-a", 8480)
    assert Address.parse("http://gpu-a:8480/v1/") == Address("gpu-a", 8480)
    assert Address.parse("https://llm.example.com") == Address("llm.example.com", 443, True)
    assert Address.parse("http://[::1]:8480").name == "[::1]:8480"


@pytest.mark.parametrize(
    "url",
    ["gpu-a:8480", "ftp://a", "http://", "http://a:99999", "http://u:p@a", "http://a/x", "http://a?b", "http://[a"],
)
def test_other_urls_are_refused_with_the_option(url: str) -> None:
    with pytest.raises(InvalidRequest, match="--to"):
        Address.parse(url)


def test_servers_are_given_once_each() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        RouteConfig(())
    with pytest.raises(InvalidRequest, match="twice"):
        RouteConfig((Address("a", 1), Address("a", 1)))
