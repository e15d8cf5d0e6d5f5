"""Who is calling. Decided on the matched route, never on a path rebuilt from headers.

Without accounts everybody is the same anonymous tenant; with them every route asks for a key, except those of the
routers that `app.PUBLIC` lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from quicksilver.accounts.identity import Identity, Scope
from quicksilver.server.services import services_of

MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True)
class Caller:
    identity: Identity | None = None
    """None: there are no accounts here."""

    @property
    def tenant(self) -> str:
        return self.identity.tenant if self.identity else ""


async def require_key(request: Request) -> None:
    """The dependency of every route that is not public; leaves the Caller for `caller_of`."""
    accounts = services_of(request).accounts
    identity = await accounts.authenticate(bearer_of(request)) if accounts else None
    request.state.caller = Caller(identity)


async def require_inference(request: Request) -> None:
    await require_key(request)
    identity = caller_of(request).identity
    if identity is not None:
        identity.require(Scope.INFERENCE)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def bearer_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= MAX_KEY_CHARS else None
