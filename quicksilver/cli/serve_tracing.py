"""Tracing of one `serve` command: checks of its settings, and the exporter while the server runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quicksilver.errors import InvalidRequest

if TYPE_CHECKING:
    from quicksilver.server.http.tracing import Tracing

PARAM = "otlp_endpoint"


def check_tracing(endpoint: str) -> None:
    """Refuses an address that is none, and tracing without its extra, before anything is loaded."""
    if endpoint:
        address = urlsplit(endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidRequest(
                f"--otlp-endpoint {endpoint}: not an address such as http://127.0.0.1:4318", param=PARAM
            )
        _tracing_class()


@asynccontextmanager
async def open_tracing(endpoint: str) -> AsyncIterator[Tracing | None]:
    """Exports spans to the collector at `endpoint` until the end; None if there is no endpoint."""
    if not endpoint:
        yield None
        return
    tracing = _tracing_class().to_collector(endpoint)
    try:
        yield tracing
    finally:
        await tracing.close()


def _tracing_class() -> type[Tracing]:
    try:
        # Imported with the other one, so that the first reply does not wait for it.
        import quicksilver.server.generation.reply_trace  # noqa: F401
        from quicksilver.server.http.tracing import Tracing
    except ImportError as error:
        hint = 'pip install ".[otel]" in a checkout'
        raise InvalidRequest(f"--otlp-endpoint needs the package {error.name}: {hint}", param=PARAM) from error
    return Tracing
