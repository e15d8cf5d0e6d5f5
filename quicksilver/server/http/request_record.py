"""What the server keeps about its requests: which are open, and the log line, trace and counts of each.

Labels of metrics are route templates, statuses, finish reasons and ids of served models only, so the number of series
is bounded. No label and no log line contains a tenant, a path, a prompt, an answer or a key.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Scope, Send

from quicksilver.core import Usage

if TYPE_CHECKING:
    # Needs an optional extra.
    from quicksilver.server.http.tracing import RequestTrace

log = logging.getLogger("quicksilver.server")

# Route of a path that does not exist. The path itself is never recorded, since callers invent paths.
UNMATCHED = "unmatched"

# Buckets of histograms.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SECONDS_PER_TOKEN = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
TOKENS_PER_FORWARD = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)


class OpenRequests:
    """Counts open requests, so that a stop can wait for them. Used on one event loop only."""

    def __init__(self) -> None:
        self.num_open = 0
        # Those of `num_open` whose routes need no key.
        self.num_open_public = 0
        self.is_draining = False
        # Tasks that wait for the next piece of a stream; at the end of a drain they are interrupted.
        self.waiting: set[asyncio.Task[Any]] = set()
        self.interrupted: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One request in flight, from its head to the last byte of its reply."""
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self._idle.set()

    @contextmanager
    def counted_public(self) -> Iterator[None]:
        """One request in flight on a route that needs no key, from its routing to the end of its reply."""
        self.num_open_public += 1
        try:
            yield
        finally:
            self.num_open_public -= 1

    async def drain(self, seconds: float) -> bool:
        """Turns new requests away and waits for the open ones; whether all finished in time."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            self.interrupted |= self.waiting
            for task in self.waiting:
                task.cancel()
            return False
        return True


class RequestRecord:
    """One request from its head to the end of its reply."""

    def __init__(self, scope: Scope, send: Send, trace: RequestTrace | None = None) -> None:
        self.id = f"req_{uuid.uuid4().hex}"
        # None until the reply starts.
        self.status: int | None = None
        # The id of the generated reply, if there is one.
        self.reply_id: str | None = None
        # None if the server does not trace this request.
        self.trace = trace
        self._started = time.perf_counter()
        self._scope = scope
        self._send = send
        scope.setdefault("state", {})["record"] = self

    async def send(self, message: Message) -> None:
        """The `send` of the application: notes the status and adds headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            elapsed_ms = int((time.perf_counter() - self._started) * 1000)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.id.encode()),
                (b"openai-processing-ms", str(elapsed_ms).encode()),
                (b"x-content-type-options", b"nosniff"),
                # The name under which Anthropic's clients read the id.
                (b"request-id", self.id.encode()),
            ]
            if self.trace is not None:
                message["headers"].append((b"traceparent", self.trace.traceparent.encode()))
        await self._send(message)

    def write(self, metrics: Metrics) -> None:
        """Logs and counts the request at its end."""
        route = route_template(self._scope)
        seconds = time.perf_counter() - self._started
        metrics.count_request(route, self.status or 500, seconds)
        fields = {"request_id": self.id, "route": route, "status": self.status, "ms": round(seconds * 1000, 1)}
        fields |= {"reply_id": self.reply_id, "retry": retry_count(self._scope)}
        if self.trace is not None:
            fields["trace_id"] = self.trace.trace_id
            self.trace.end(route, self.status or 500, self.id)
        log.info("request", extra=fields)


def route_template(scope: Scope) -> str:
    """The path of the request's route as it was declared. A request that was refused before routing has the route that
    would have answered it."""
    route = scope.get("route") or _matching_route(scope)
    path: str = getattr(route, "path", UNMATCHED)
    return path


def _matching_route(scope: Scope) -> BaseRoute | None:
    by_path: BaseRoute | None = None
    for route in _leaves(scope["app"].routes):
        match, _ = route.matches(scope)
        if match is Match.FULL:
            return route
        if match is Match.PARTIAL:
            # The path exists with other methods.
            by_path = by_path or route
    return by_path


def _leaves(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """The routes, and those of the routers among them: FastAPI keeps an included router as one route."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from _leaves(router.routes)


def record_of(request: Request) -> RequestRecord:
    """The record that Guard opened."""
    record: RequestRecord = request.state.record
    return record


def retry_count(scope: Scope) -> int:
    """The client's count of earlier tries. A retry after a lost reply is a new paid request."""
    stated = Headers(scope=scope).get("x-stainless-retry-count", "0")
    return int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 4 else 0


class Metrics:
    """Counts of requests and replies. One registry per app: two apps in one process do not share counts.

    Of several API processes, each writes its counts to files in the folder that PROMETHEUS_MULTIPROC_DIR names, and the
    supervisor, which is given the same `folder`, adds them up. Counters stay when a process ends.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self.folder = folder
        self._first = _per_model("time_to_first_token_seconds", "Request to first token", SECONDS, registry)
        self._whole = _per_model("e2e_request_latency_seconds", "Request to last token", SECONDS, registry)
        text = "Wait in the engine for the first forward"
        self._queued = _per_model("request_queue_time_seconds", text, SECONDS, registry)
        text = "Time per token after the first"
        self._per_token = _per_model("time_per_output_token_seconds", text, SECONDS_PER_TOKEN, registry)
        self._per_forward = _per_model("tokens_per_forward", "Tokens per forward", TOKENS_PER_FORWARD, registry)
        self._requests = Counter(
            "quicksilver_http_requests", "Requests by route and status", ("route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "quicksilver_http_request_seconds", "Whole requests", ("route",), buckets=SECONDS, registry=registry
        )
        self._finished = Counter(
            "quicksilver_request_success", "Answers by how they ended", ("model", "finished_reason"), registry=registry
        )
        self._legs = Counter(
            "quicksilver_hybrid_legs", "Targets of hybrid routing by outcome", ("target", "outcome"), registry=registry
        )
        self.num_open = Gauge(
            "quicksilver_http_requests_open", "Requests in flight", registry=registry, multiprocess_mode="livesum"
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_leg(self, target: str, outcome: str) -> None:
        self._legs.labels(target, outcome).inc()

    def first_token(self, model: str, seconds: float) -> None:
        self._first.labels(model).observe(seconds)

    def finished(self, model: str, reason: str, usage: Usage, seconds: float, decode_s: float) -> None:
        """An answer ended after `seconds`, `decode_s` of them after its first token."""
        self._finished.labels(model, reason).inc()
        self._whole.labels(model).observe(seconds)
        self._queued.labels(model).observe(usage.queued_s)
        if usage.completion_tokens > 1:
            self._per_token.labels(model).observe(decode_s / (usage.completion_tokens - 1))
        if usage.forwards:
            self._per_forward.labels(model).observe(usage.completion_tokens / usage.forwards)


def _per_model(name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"quicksilver_{name}", text, ("model",), buckets=buckets, registry=registry)
