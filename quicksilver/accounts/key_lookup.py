"""Finds the identity of a bearer token: hash, look up, compare, and cache for a fraction of a second.

The rights of a key are the intersection over all keys of its path, so narrowing or revoking a key also affects the keys
made with it. Unknown, malformed, expired and revoked keys raise the same error.
"""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from quicksilver.accounts.identity import ALL_SCOPES, Identity, Scope, narrow, stored_scopes
from quicksilver.accounts.keys import Pepper
from quicksilver.accounts.schema import accounts, api_keys, secrets
from quicksilver.accounts.store import Store
from quicksilver.errors import AuthenticationFailed

_MAX_CACHED = 10_000


class KeyLookup:
    """Lookup of API keys. Safe to call from several threads."""

    def __init__(self, store: Store, pepper: Pepper, cache_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._pepper = pepper
        self._cache_s = cache_s
        self._clock = clock
        self._cache: OrderedDict[str, tuple[float, Identity]] = OrderedDict()

    def cached(self, digest: str) -> Identity | None:
        """A recent lookup. Its age is monotonic time: a clock that is set back must not keep a revoked key valid."""
        known = self._cache.get(digest)
        if known is None or time.monotonic() >= known[0]:
            return None
        return known[1] if _is_current(known[1].expires_at, self._clock()) else None

    def digest(self, bearer: str | None) -> str:
        digest = self._pepper.key_digest(bearer)
        if digest is None:
            raise AuthenticationFailed("no API key, or a malformed one; send 'Authorization: Bearer qs-…'")
        return digest

    def look_up(self, digest: str) -> Identity:
        started_at = time.monotonic()
        with self._store.read() as connection:
            query = select(secrets).where(secrets.c.digest == digest)
            secret = connection.execute(query).one_or_none()
            if secret is None or not hmac.compare_digest(secret.digest, digest):
                raise AuthenticationFailed("this API key is not valid here")
            identity = self._identity(connection, secret.key_id, secret.expires_at)
        self._cache[digest] = (started_at + self._cache_s, identity)
        while len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return identity

    def is_live(self, identity: Identity) -> bool:
        """Whether the key of an open request is still valid."""
        with self._store.read() as connection:
            try:
                self._identity(connection, identity.key_id, identity.expires_at)
            except AuthenticationFailed:
                return False
        return True

    def by_id(self, key_id: str) -> Identity:
        with self._store.read() as connection:
            return self._identity(connection, key_id, None)

    def _identity(self, connection: Connection, key_id: str, secret_expires_at: int | None) -> Identity:
        path = connection.execute(select(accounts.c.path).where(accounts.c.id == key_id)).scalar_one()
        rows = _chain(connection, path)
        expiries = [at for at in (secret_expires_at, *(row.expires_at for row in rows)) if at is not None]
        expires_at = min(expiries, default=None)
        if any(row.disabled_at is not None for row in rows) or not _is_current(expires_at, self._clock()):
            raise AuthenticationFailed("this API key is not valid here")
        own = next(row for row in rows if row.id == key_id)
        scopes, models = effective_rights(rows)
        return Identity(key_id, path, scopes, models, own.user_id, expires_at)


def effective_rights(rows: Sequence[Any]) -> tuple[frozenset[Scope], frozenset[str] | None]:
    """Rights that all keys of a path have; organisations and projects restrict nothing."""
    scopes = ALL_SCOPES
    models: frozenset[str] | None = None
    for row in rows:
        if row.scopes is not None:
            scopes &= stored_scopes(row.scopes)
            models = narrow(models, None if row.models is None else frozenset(row.models.split()))
    return scopes, models


def _chain(connection: Connection, path: str) -> Sequence[Any]:
    columns = (accounts.c.id, accounts.c.disabled_at, api_keys.c.scopes, api_keys.c.models)
    query = select(*columns, api_keys.c.expires_at, api_keys.c.user_id)
    joined = query.outerjoin_from(accounts, api_keys, api_keys.c.id == accounts.c.id)
    return connection.execute(joined.where(accounts.c.id.in_(path.split("/")))).all()


def _is_current(expires_at: int | None, now: float) -> bool:
    return expires_at is None or now < expires_at
