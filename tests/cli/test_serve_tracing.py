"""`--otlp-endpoint`: what is refused before a model is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quicksilver.cli.serve_tracing import check_tracing, open_tracing
from quicksilver.errors import InvalidRequest


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "collector"])
def test_an_address_without_scheme_or_host_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="--otlp-endpoint"):
        check_tracing(endpoint)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quicksilver.server.http.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(InvalidRequest, match=r'opentelemetry.*pip install "\.\[otel\]" in a checkout'):
        check_tracing("http://127.0.0.1:4318")


async def test_without_an_endpoint_nothing_is_traced() -> None:
    check_tracing("")
    async with open_tracing("") as tracing:
        assert tracing is None


def test_a_server_that_does_not_trace_does_not_import_the_extra() -> None:
    code = "import sys, quicksilver.cli.serve; sys.exit(any(n.startswith('opentelemetry.sdk') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
