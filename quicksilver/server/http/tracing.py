"""Traces in OpenTelemetry's form: one span per HTTP request, exported to a collector over OTLP/HTTP.

Needs the extra `otel`; only servers that trace import this module. Attributes are route templates, statuses and ids.
There is no path, header, prompt, answer or key in a span.
"""

from __future__ import annotations

import asyncio
import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from quicksilver import __version__

TRACES_PATH = "/v1/traces"
# Seconds for one export, and for the last one while the server ends.
EXPORT_S = 3.0
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """Begins the spans of requests. The SDK's own environment variables apply, such as OTEL_TRACES_SAMPLER."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("quicksilver", __version__)

    @classmethod
    def to_collector(cls, endpoint: str) -> Tracing:
        """Exports to the collector at `endpoint`, such as http://127.0.0.1:4318, in the background."""
        own = Resource({SERVICE_NAME: "quicksilver", SERVICE_VERSION: __version__})
        provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(traces_url(endpoint), timeout=EXPORT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def begin(self, scope: Scope) -> RequestTrace:
        """The span of a request, which continues the trace of its `traceparent` header if there is a valid one."""
        return RequestTrace(self.tracer, scope)

    async def close(self) -> None:
        """Exports the spans that have ended. A collector that does not answer delays this by `EXPORT_S` at most."""
        last_export = threading.Thread(target=self._provider.shutdown, daemon=True)
        last_export.start()
        await asyncio.to_thread(last_export.join, EXPORT_S)


class RequestTrace:
    """The span of one request, from its head to the last byte of its reply."""

    def __init__(self, tracer: Tracer, scope: Scope) -> None:
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        self.tracer = tracer
        self._method = method
        self._span = tracer.start_span(
            method,
            _propagator.extract(trace_headers(scope)),
            SpanKind.SERVER,
            {"http.request.method": method, "url.scheme": scope.get("scheme", "http")},
        )
        self.context = set_span_in_context(self._span)
        self.trace_id = format_trace_id(self._span.get_span_context().trace_id)

    @property
    def traceparent(self) -> str:
        """The header that names this span."""
        headers: dict[str, str] = {}
        _propagator.inject(headers, self.context)
        return headers["traceparent"]

    def end(self, route: str, status: int, request_id: str) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes(
            {"http.route": route, "http.response.status_code": status, "quicksilver.request_id": request_id}
        )
        if status >= 500:
            mark_failed(self._span, str(status))
        self._span.end()


def mark_failed(span: Span, error_type: str) -> None:
    """`error_type` is a status or a code. Messages of errors may quote a prompt, so they are never part of a span."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def trace_headers(scope: Scope) -> dict[str, str]:
    """The headers of W3C Trace Context. A `traceparent` that comes twice is ignored, as the specification demands."""
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    states = [value for name, value in scope["headers"] if name == b"tracestate"]
    if len(parents) != 1:
        return {}
    return {"traceparent": parents[0].decode("latin-1"), "tracestate": b",".join(states).decode("latin-1")}


def traces_url(endpoint: str) -> str:
    """The address of a collector's traces: its own address with the standard path, unless it has that path."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH
