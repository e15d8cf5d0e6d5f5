"""The record of one request: its id, the headers that every reply has, one log line and one count.

Log lines have route templates and ids only; no path, prompt, answer or key.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Scope, Send

from quicksilver.server.http.metrics import Metrics

if TYPE_CHECKING:
    # Needs an optional extra.
    from quicksilver.server.http.tracing import RequestTrace

log = logging.getLogger("quicksilver.server")

# Route of a path that does not exist. The path itself is never recorded, since callers invent paths.
UNMATCHED = "unmatched"


class RequestRecord:
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
