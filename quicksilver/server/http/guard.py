"""Guard: the outermost ASGI layer. Admits or refuses each request, counts it while it is open, and records it.

Runs before routing and authentication, from the head of the request alone: bounds on headers, the Host and Origin that
may be named, and open requests. Every error that a route raises becomes a reply here; an unexpected exception becomes a
plain 500. The record of a request has its id, the headers that every reply has, one log line and one count. Log lines
have route templates and ids only; no path, prompt, answer or key.
"""

from __future__ import annotations

import logging
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied, QuicksilverError, Unavailable
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.errors import (
    HeadersTooLarge,
    HostNotServed,
    MethodNotAllowed,
    error_response,
    internal_error,
)
from quicksilver.server.http.metrics import Metrics
from quicksilver.server.services import Services

if TYPE_CHECKING:
    # Needs an optional extra.
    from quicksilver.server.http.tracing import RequestTrace

log = logging.getLogger("quicksilver.server")

# Answered while draining and beyond the cap on open requests.
ALWAYS_ANSWERED = ("/health", "/ready", "/metrics")
# Headers that decide how a request is treated. With two of one name, a proxy may have checked the other one.
SINGLE_HEADERS = (b"host", b"authorization", b"x-api-key", b"origin", b"content-length")
# Digits of 2**63 - 1.
MAX_LENGTH_DIGITS = 19
# Logged status of a request whose client closed the connection before the reply started; never sent.
CLIENT_CLOSED = 499
# Route of a path that does not exist. The path itself is never recorded, since callers invent paths.
UNMATCHED = "unmatched"


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        tracing = services.tracing if scope["path"] not in ALWAYS_ANSWERED else None
        trace = tracing.begin(scope) if tracing is not None else None
        if scope["method"] == "HEAD":
            # Answered as GET. The protocol has the scope as it was, and sends the head of the reply alone.
            scope = {**scope, "method": "GET"}
        record = RequestRecord(scope, send, trace)
        with services.open_requests.counted(), services.metrics.num_open.track_inprogress():
            try:
                check_admission(scope, services)
                await self.app(scope, receive, record.send)
            except ClientDisconnect:
                record.status = record.status or CLIENT_CLOSED
            except Exception as error:
                refusal = as_refusal(error, record.id)
                if record.status is None:
                    # The rest of the request may still be on its way, so the connection is not used again.
                    headers = {"connection": "close", **cors_headers(scope, services.config)}
                    response = error_response(refusal, headers, scope["path"], record.id)
                    await response(scope, receive, record.send)
            finally:
                record.write(services.metrics)


def as_refusal(error: Exception, request_id: str | None = None, reply_id: str | None = None) -> QuicksilverError:
    """The reply's error. An unexpected exception is logged by type and place; its message may quote a prompt."""
    if isinstance(error, QuicksilverError):
        return error
    place = "".join(traceback.format_tb(error.__traceback__))
    ids = {"request_id": request_id, "reply_id": reply_id}
    log.error("unexpected %s\n%s", type(error).__name__, place, extra=ids)
    return internal_error()


def add_refusals(app: FastAPI) -> None:
    """Registers the handlers that answer errors with the envelope."""
    app.add_exception_handler(QuicksilverError, _on_refusal)
    app.add_exception_handler(HTTPException, _on_framework_refusal)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, QuicksilverError)
    return error_response(error, path=request.scope["path"], request_id=record_of(request).id)


async def _on_framework_refusal(request: Request, error: Exception) -> Response:
    """Errors of Starlette: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    path, request_id = request.scope["path"], record_of(request).id
    if error.status_code == 404:
        unknown = NotFound("There is nothing at this path; GET /openapi.json lists the paths.")
        return error_response(unknown, path=path, request_id=request_id)
    if error.status_code == 405:
        refusal = MethodNotAllowed("This path takes another method.")
        return error_response(refusal, _allowed(request, error), path, request_id)
    return error_response(InvalidRequest(str(error.detail)), path=path, request_id=request_id)


def _allowed(request: Request, error: HTTPException) -> Mapping[str, str]:
    """`Allow` with every method of the path; the framework lists only those of the first matching route."""
    path = getattr(request.scope.get("route"), "path", "").replace(":path}", "}")
    methods = request.app.openapi()["paths"].get(path)
    return {"allow": ", ".join(method.upper() for method in methods)} if methods else error.headers or {}


def check_admission(scope: Scope, services: Services) -> None:
    """Raises the refusal of a request that is not served."""
    headers, config = Headers(scope=scope), services.config
    check_headers(scope, config)
    check_origin(headers, check_host(headers, config), config)
    if scope["path"] not in ALWAYS_ANSWERED:
        check_capacity(services)


def check_capacity(services: Services) -> None:
    if services.open_requests.is_draining:
        raise Unavailable("This server is shutting down.", code="draining")
    if services.open_requests.num_open > services.config.max_open:
        raise Unavailable("Too many requests are open here.", code="server_overloaded")


def check_headers(scope: Scope, config: ServerConfig) -> None:
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > config.num_headers or size > config.header_bytes:
        raise HeadersTooLarge(f"At most {config.num_headers} headers and {config.header_bytes} bytes of them.")
    names = [name for name, _ in headers if name in SINGLE_HEADERS]
    if len(names) != len(set(names)):
        raise InvalidRequest("Host, Authorization, X-Api-Key, Origin and Content-Length may come once.")
    if any(name == b"content-length" and len(value) > MAX_LENGTH_DIGITS for name, value in headers):
        raise InvalidRequest(f"Content-Length has more than {MAX_LENGTH_DIGITS} digits.")


def check_host(headers: Headers, config: ServerConfig) -> str:
    """The Host header. Its name must be a listed one: otherwise a web page could reach the server by DNS rebinding."""
    host = headers.get("host", "")
    name = _name_in(host)
    if "*" not in config.hosts and (name is None or name not in {h.strip("[]") for h in config.hosts}):
        raise HostNotServed("This server does not answer to that Host; start it with --allow-host NAME to add one.")
    return host


def _name_in(host: str) -> str | None:
    """The name without its port; None if the header is malformed."""
    try:
        return urlsplit(f"//{host}").hostname if _is_plain(host) else None
    except ValueError:  # half a pair of brackets
        return None


def _is_plain(host: str) -> bool:
    return bool(host) and all(c.isalnum() or c in ".-:[]_" for c in host) and host.isascii()


def check_origin(headers: Headers, host: str, config: ServerConfig) -> None:
    """Browsers send the origin of the page. Pages of this server and of listed origins are allowed."""
    origin = headers.get("origin")
    if origin is None or origin in config.origins or "*" in config.origins:
        return
    if origin not in (f"http://{host}", f"https://{host}"):
        message = "Requests from that Origin are not allowed; start the server with --allow-origin ORIGIN to add one."
        raise PermissionDenied(message, code="origin_not_allowed")


def cors_headers(scope: Scope, config: ServerConfig) -> dict[str, str]:
    """Headers that let a page of a listed origin read a refusal of this layer, which is outside the CORS layer."""
    origin = Headers(scope=scope).get("origin")
    if origin is None or not (origin in config.origins or "*" in config.origins):
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "Origin"}


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
