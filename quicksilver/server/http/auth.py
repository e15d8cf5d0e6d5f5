"""Authentication as route dependencies. Decided by the matched route, never by a path rebuilt from headers.

Without accounts all callers are one anonymous tenant. With accounts every route requires a key, except those of the
routers in `app.PROBES` and `app.PUBLIC`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from quicksilver.accounts.identity import Identity, Scope
from quicksilver.errors import NotFound, TooManyInFlight, Unavailable
from quicksilver.server.http.connections import TRUST
from quicksilver.server.services import services_of

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

MAX_KEY_CHARS = 512
# Key of the scope of a request that is a line of a batch.
BATCH_CALLER = "quicksilver.batch_caller"
# Longer bodies take noticeable time to read, parse and encode.
LONG_BODY_BYTES = 32 * 2**10


@dataclass(frozen=True, slots=True)
class Caller:
    # None on a server without accounts.
    identity: Identity | None = None

    @property
    def tenant(self) -> str:
        return self.identity.tenant if self.identity else ""


async def require_key(request: Request) -> None:
    """Dependency of every route that is not public; `caller_of` returns the result. A line of a batch has the caller of
    the batch; only code of this process can set that key of the scope."""
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
    identity.require(Scope.ADMIN)
    request.state.caller = Caller(identity)


async def require_metrics(request: Request) -> None:
    accounts = services_of(request).accounts
    if accounts is not None:
        (await accounts.authenticate(bearer_of(request))).require(Scope.METRICS)


async def require_inference(request: Request) -> None:
    await require_key(request)
    identity = caller_of(request).identity
    if identity is not None:
        identity.require(Scope.INFERENCE)
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
