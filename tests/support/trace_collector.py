"""`TraceCollector`: receives traces over OTLP/HTTP on loopback and decodes them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceCollector:
    """A context manager; `endpoint` is the address for `--otlp-endpoint`."""

    def __init__(self) -> None:
        collector = self
        self.paths: list[str] = []
        self.bodies: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                collector.bodies.append(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [_attributes(part.resource.attributes) for part in self._parts()]

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Every span received, as plain values."""
        found = (span for part in self._parts() for scope in part.scope_spans for span in scope.spans)
        return [
            {
                "name": span.name,
                "trace_id": span.trace_id.hex(),
                "span_id": span.span_id.hex(),
                "parent_id": span.parent_span_id.hex(),
                "start": span.start_time_unix_nano,
                "end": span.end_time_unix_nano,
                "is_error": span.status.code == 2,
                "message": span.status.message,
                "events": len(span.events),
                "attributes": _attributes(span.attributes),
            }
            for span in found
        ]

    def _parts(self) -> list[Any]:
        return [part for body in self.bodies for part in ExportTraceServiceRequest.FromString(body).resource_spans]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
