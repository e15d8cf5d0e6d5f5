"""Scopes and the identity of an API key. A key made with another key never has more scopes than that key.

No database access.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from quicksilver.errors import InvalidRequest, PermissionDenied


class Scope(StrEnum):
    """One permission. `ADMIN` contains all others."""

    INFERENCE = "inference"
    USAGE = "usage"
    KEYS = "keys"
    METRICS = "metrics"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by name; `admin` is expanded into all scopes."""
    try:
        scopes = frozenset(Scope(name) for name in names)
    except ValueError:
        raise InvalidRequest(f"scopes are {', '.join(Scope)}", param="scopes") from None
    return ALL_SCOPES if Scope.ADMIN in scopes else scopes


def stored_scopes(text: str) -> frozenset[Scope]:
    """Scopes as the database holds them. Names that an older or newer version has written are ignored."""
    return parse_scopes(name for name in text.split() if name in ALL_SCOPES)


def narrow(models: frozenset[str] | None, allowed: frozenset[str] | None) -> frozenset[str] | None:
    """The models both lists allow; None allows every model."""
    if models is None or allowed is None:
        return allowed if models is None else models
    return models & allowed


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated key: its path, scopes and models. Contains no secret, so it may be logged."""

    key_id: str
    # Ids from the organisation down to this key, joined by '/': the accounts that are charged.
    path: str
    scopes: frozenset[Scope]
    # Models that this key may use; None: all.
    models: frozenset[str] | None = None
    user_id: str | None = None
    expires_at: int | None = None

    @property
    def account_ids(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))

    @property
    def org_id(self) -> str:
        return self.account_ids[0]

    @property
    def project_id(self) -> str:
        return self.account_ids[1]

    @property
    def tenant(self) -> str:
        """Cache salt: KV pages and compiled grammars are not shared between tenants."""
        return self.project_id

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.scopes

    @property
    def as_tenant(self) -> Identity:
        """The same key without the scope `admin`, for listeners that are not for operators."""
        return replace(self, scopes=self.scopes - {Scope.ADMIN})

    def require(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise PermissionDenied(f"this key lacks the scope '{scope}'; use a key that has it")

    def require_model(self, model: str) -> None:
        if self.models is not None and model not in self.models:
            raise PermissionDenied("this key may not use that model; ask for it or use another key", param="model")

    def sees(self, path: str) -> bool:
        """Whether the account at `path` is this key or was made with it. Admins see all."""
        return self.is_admin or path == self.path or path.startswith(self.path + "/")


# The identity of the command line, which opens the database directly.
OPERATOR = Identity(key_id="operator", path="operator/operator", scopes=ALL_SCOPES)
