"""Which requests are accepted: by the Guard before routing, and by the keys that their routes require.

Guard is the outermost ASGI layer. It reads only the request line and the headers: bounds on headers, the Host and
Origin that may be named, and open requests. Every error that a route raises becomes a reply there; an unexpected
exception becomes a plain 500.

Authentication is a route dependency, so it is decided by the matched route, never by a path rebuilt from headers.
Without accounts all callers are one anonymous tenant. With accounts every route requires a key, except those of the
routers in `app.PROBES` and `app.PUBLIC`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.accounts.identity import Identity
from quicksilver.accounts.identity import Scope as KeyScope
from quicksilver.errors import (
    InvalidRequest,
    NotFound,
    PermissionDenied,
    QuicksilverError,
    TooManyInFlight,
    Unavailable,
)
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.connections import TRUST
from quicksilver.server.http.errors import (
    HeadersTooLarge,
    HostNotServed,
    MethodNotAllowed,
    error_response,
    internal_error,
)
from quicksilver.server.http.request_record import RequestRecord, record_of
from quicksilver.server.services import Services, services_of

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

log = logging.getLogger("quicksilver.server")

# Answered while draining and beyond the cap on open requests.
ALWAYS_ANSWERED = ("/health", "/ready", "/metrics")
# Headers that decide how a request is treated. With two of one name, a proxy may have checked the other one.
SINGLE_HEADERS = (b"host", b"authorization", b"x-api-key", b"origin", b"content-length")
# Digits of 2**63 - 1.
MAX_LENGTH_DIGITS = 19
# Logged status of a request whose client closed the connection before the reply started; never sent.
CLIENT_CLOSED = 499
MAX_KEY_CHARS = 512
# Key of the scope of a request that is a line of a batch.
BATCH_CALLER = "quicksilver.batch_caller"
# Longer bodies take noticeable time to read, parse and encode.
LONG_BODY_BYTES = 32 * 2**10


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


@dataclass(frozen=True, slots=True)
class Caller:
    # None on a server without accounts.
    identity: Identity | None = None

    @property
    def tenant(self) -> str:
        return self.identity.tenant if self.identity else ""


async def require_key(request: Request) -> None:
    """Dependency of every route that is not public; `caller_of` returns the result. A request that is a line of a batch
    has the caller of the batch, which the batch runner puts into the scope; a client cannot set keys of the scope."""
    if (of_batch := request.scope.get(BATCH_CALLER)) is not None:
        request.state.caller = of_batch
        return
    accounts = services_of(request).accounts
    identity = await accounts.authenticate(bearer_of(request)) if accounts else None
    if trust := request.scope.get(TRUST):
        trust()  # the connection is no longer closed to make room for others
    # On this listener an admin key is limited to its own tenant.
    request.state.caller = Caller(identity.as_tenant if identity else None)


async def require_public_slot(request: Request) -> AsyncIterator[None]:
    """Dependency of routes without a key: few may be open, so that they cannot use up `max_open`."""
    services = services_of(request)
    with services.open_requests.counted_public():
        if services.open_requests.num_open_public > services.config.max_open_public:
            raise Unavailable("Too many requests without a key are open here.", code="server_overloaded")
        yield


async def require_account(request: Request) -> None:
    """Dependency of account routes, which are 404 on a server without accounts."""
    accounts_of(request)
    await require_key(request)


async def require_admin(request: Request) -> None:
    """Dependency of the admin listener: a key with the scope `admin`."""
    identity = await accounts_of(request).authenticate(bearer_of(request))
    identity.require(KeyScope.ADMIN)
    request.state.caller = Caller(identity)


async def require_metrics(request: Request) -> None:
    accounts = services_of(request).accounts
    if accounts is not None:
        (await accounts.authenticate(bearer_of(request))).require(KeyScope.METRICS)


async def require_inference(request: Request) -> None:
    await require_key(request)
    identity = caller_of(request).identity
    if identity is not None:
        identity.require(KeyScope.INFERENCE)
        await _check_long_body(request, identity)


async def _check_long_body(request: Request, identity: Identity) -> None:
    """Refuses a long body before it is read and encoded if the budgets of the caller admit no request at all. A request
    with an Idempotency-Key may replay a saved reply, which costs nothing, so it is not checked."""
    length = request.headers.get("content-length", "")
    # A request without both headers has no body: stored objects can be read and deleted when the credit is spent.
    is_absent = not length and "transfer-encoding" not in request.headers
    is_short = is_absent or (0 < len(length) < 10 and length.isdecimal() and int(length) <= LONG_BODY_BYTES)
    if not is_short and "idempotency-key" not in request.headers:
        # A request above the limit in flight waits for its turn after its body was read.
        with suppress(TooManyInFlight):
            await accounts_of(request).check_budgets(identity)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def accounts_of(request: Request) -> Accounts:
    accounts = services_of(request).accounts
    if accounts is None:
        raise NotFound("This server keeps no accounts; start it with --accounts.", code="accounts_off")
    return accounts


def identity_of(request: Request) -> Identity:
    """The identity of the caller, on a route that requires accounts."""
    identity = caller_of(request).identity
    if identity is None:
        raise NotFound("This server keeps no accounts; start it with --accounts.", code="accounts_off")
    return identity


def bearer_of(request: Request) -> str | None:
    """The key of `Authorization: Bearer`, or of Anthropic's `x-api-key` where there is no Authorization header."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        scheme, token = "bearer", request.headers.get("x-api-key", "")
    else:
        scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= MAX_KEY_CHARS else None
