"""The address that is shown for a listener."""

from __future__ import annotations

import pytest

from quicksilver.cli.addresses import shown_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8480"),
        ("0.0.0.0", "http://127.0.0.1:8480"),
        ("192.168.1.5", "http://192.168.1.5:8480"),
        ("localhost", "http://localhost:8480"),
        ("::", "http://[::1]:8480"),
        ("::1", "http://[::1]:8480"),
        ("[::1]", "http://[::1]:8480"),
    ],
)
def test_a_url_that_a_client_on_this_machine_can_use(host: str, url: str) -> None:
    assert shown_url(host, 8480) == url
