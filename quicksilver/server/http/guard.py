"""Guard: the outermost ASGI layer. Admits or refuses each request, counts it while it is open, and records it.

Runs before routing and authentication, from the head of the request alone: bounds on headers, the Host and Origin that
may be named, and open requests. An unexpected exception becomes a plain 500 here.
"""

from __future__ import annotations

import logging
import traceback
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.errors import InvalidRequest, PermissionDenied, QuicksilverError, Unavailable
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.access_log import RequestRecord
from quicksilver.server.http.errors import HeadersTooLarge, HostNotServed, error_response, internal_error
from quicksilver.server.services import Services

# Answered while draining and beyond the cap on open requests.
ALWAYS_ANSWERED = ("/health", "/ready", "/metrics")
# Headers that decide how a request is treated. With two of one name, a proxy may have checked the other one.
SINGLE_HEADERS = (b"host", b"authorization", b"x-api-key", b"origin", b"content-length")
# Of 2**63 - 1.
MAX_LENGTH_DIGITS = 19


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


log = logging.getLogger("quicksilver.server")

# Of a request whose client closed the connection before the reply started; never sent.
CLIENT_CLOSED = 499


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        tracing = services.tracing if scope["path"] not in ALWAYS_ANSWERED else None
        record = RequestRecord(scope, send, tracing.begin(scope) if tracing is not None else None)
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
                    response = error_response(refusal, {"connection": "close"}, scope["path"], record.id)
                    await response(scope, receive, record.send)
            finally:
                record.write(services.metrics)


def as_refusal(error: Exception, request_id: str) -> QuicksilverError:
    """The reply's error. An unexpected exception is logged by type and place; its message may quote a prompt."""
    if isinstance(error, QuicksilverError):
        return error
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("unexpected %s\n%s", type(error).__name__, place, extra={"request_id": request_id})
    return internal_error()
