"""The outermost ASGI layer: who may speak to this server at all, and the record of every request.

Runs before routing and authentication and never reads a body. Each request gets an id, is counted while open, and
leaves one log line; an exception that nobody foresaw becomes a plain 500 here.
"""

from __future__ import annotations

import logging
import time
import traceback
import uuid
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quicksilver.errors import InvalidRequest, PermissionDenied, QuicksilverError, Unavailable
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.errors import HeadersTooLarge, HostNotServed, error_response, internal_error
from quicksilver.server.services import Services

log = logging.getLogger("quicksilver.server")

ALWAYS_ANSWERED = ("/health", "/ready", "/metrics")
"""Probes and figures are answered while draining and beyond the cap on open requests."""

# Headers that decide how a request is treated. With two of one name, a proxy may have checked the other one.
SINGLE_HEADERS = (b"host", b"authorization", b"origin", b"content-length")
# Of 2**63 - 1.
MAX_LENGTH_DIGITS = 19


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        visit = Visit(scope, send)
        with services.life.entered():
            try:
                admit(scope, services)
                await self.app(scope, receive, visit.send)
            except ClientDisconnect:
                visit.status = visit.status or 499
            except Exception as error:
                await self._explain(error, visit, scope, receive)
            finally:
                record(visit, scope, services)

    async def _explain(self, error: Exception, visit: Visit, scope: Scope, receive: Receive) -> None:
        if not isinstance(error, QuicksilverError):
            # The message of a foreign exception may quote a prompt; its type and place do not.
            place = "".join(traceback.format_tb(error.__traceback__))
            log.error("unforeseen %s\n%s", type(error).__name__, place, extra={"request_id": visit.id})
            error = internal_error()
        if visit.status is None:
            # The rest of the request may still be on its way, so the connection is not used again.
            await error_response(error, {"connection": "close"})(scope, receive, visit.send)


class Visit:
    """One request on its way through: its id, and the status it got."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.id = f"req_{uuid.uuid4().hex}"
        self.status: int | None = None
        self.started = time.perf_counter()
        self._send = send
        # The id of the generated reply, for the log.
        self.reply_id: str | None = None
        scope.setdefault("state", {})["visit"] = self

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            elapsed_ms = int((time.perf_counter() - self.started) * 1000)
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.id.encode()),
                (b"openai-processing-ms", str(elapsed_ms).encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)


def visit_of(request: Request) -> Visit:
    visit: Visit = request.state.visit
    return visit


def admit(scope: Scope, services: Services) -> None:
    headers, config = Headers(scope=scope), services.config
    check_size(scope, config)
    check_origin(headers, check_host(headers, config), config)
    if scope["path"] not in ALWAYS_ANSWERED:
        check_room(services)


def check_room(services: Services) -> None:
    if services.life.is_draining:
        raise Unavailable("This server is shutting down.", code="draining")
    if services.life.num_open > services.config.max_open:
        raise Unavailable("Too many requests are open here.", code="server_overloaded")


def record(visit: Visit, scope: Scope, services: Services) -> None:
    route = getattr(scope.get("route"), "path", "unmatched")
    seconds = time.perf_counter() - visit.started
    services.metrics.count_request(route, visit.status or 500, seconds)
    fields = {"request_id": visit.id, "route": route, "status": visit.status, "ms": round(seconds * 1000, 1)}
    log.info("request", extra={**fields, "reply_id": visit.reply_id, "retry": retry_count(scope)})


def retry_count(scope: Scope) -> int:
    """How often the client says it has tried before: a retry after a lost reply is a new paid request."""
    told = Headers(scope=scope).get("x-stainless-retry-count", "0")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 4 else 0


def check_size(scope: Scope, config: ServerConfig) -> None:
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > config.num_headers or size > config.header_bytes:
        raise HeadersTooLarge(f"At most {config.num_headers} headers and {config.header_bytes} bytes of them.")
    names = [name for name, _ in headers if name in SINGLE_HEADERS]
    if len(names) != len(set(names)):
        raise InvalidRequest("Host, Authorization, Origin and Content-Length may come once.")
    if any(name == b"content-length" and len(value) > MAX_LENGTH_DIGITS for name, value in headers):
        raise InvalidRequest(f"Content-Length has more than {MAX_LENGTH_DIGITS} digits.")


def check_host(headers: Headers, config: ServerConfig) -> str:
    """The Host header as sent; its name must be one of ours, or a page elsewhere could be rebound onto us."""
    host = headers.get("host", "")
    name = _name_in(host)
    if "*" not in config.hosts and (name is None or name not in {h.strip("[]") for h in config.hosts}):
        raise HostNotServed("This server does not answer to that Host.")
    return host


def _name_in(host: str) -> str | None:
    """The name without its port; None where the header holds no such thing."""
    try:
        return urlsplit(f"//{host}").hostname if _is_plain(host) else None
    except ValueError:  # half a pair of brackets
        return None


def _is_plain(host: str) -> bool:
    return bool(host) and all(c.isalnum() or c in ".-:[]_" for c in host) and host.isascii()


def check_origin(headers: Headers, host: str, config: ServerConfig) -> None:
    """Browsers name the page they act for; only our own pages and the listed ones may act here."""
    origin = headers.get("origin")
    if origin is None or origin in config.origins or "*" in config.origins:
        return
    if origin not in (f"http://{host}", f"https://{host}"):
        raise PermissionDenied("Requests from that Origin are not allowed.", code="origin_not_allowed")
