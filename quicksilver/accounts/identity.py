"""What a key may do. Scopes form a lattice under inclusion: a key minted by a key never stands above it.

Pure: no database, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from quicksilver.errors import InvalidRequest, PermissionDenied


class Scope(StrEnum):
    """One permission. `ADMIN` contains all others."""

    INFERENCE = "inference"
    FILES = "files"
    TRAINING = "training"
    USAGE = "usage"
    KEYS = "keys"
    METRICS = "metrics"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by name, `admin` spelt out into everything it contains."""
    try:
        scopes = frozenset(Scope(name) for name in names)
    except ValueError:
        raise InvalidRequest(f"scopes are {', '.join(Scope)}", param="scopes") from None
    return ALL_SCOPES if Scope.ADMIN in scopes else scopes


def narrow(models: frozenset[str] | None, allowed: frozenset[str] | None) -> frozenset[str] | None:
    """The models both lists allow; None allows every model."""
    if models is None or allowed is None:
        return allowed if models is None else models
    return models & allowed


@dataclass(frozen=True, slots=True)
class Identity:
    """A proven key: who, within what, allowed what. Holds nothing secret, so it may be logged."""

    key_id: str
    path: str
    """Ids from the organisation down to this key, joined by '/': the purses that pay."""
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    """Models this key may name; None: all."""
    user_id: str | None = None
    expires_at: int | None = None

    @property
    def purse_ids(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))

    @property
    def org_id(self) -> str:
        return self.purse_ids[0]

    @property
    def project_id(self) -> str:
        return self.purse_ids[1]

    @property
    def tenant(self) -> str:
        """Salt for caches: answers and pages are never shared across it."""
        return self.project_id

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.scopes

    @property
    def as_tenant(self) -> Identity:
        """The same key without the power over others: what it is on a listener that is not for operators."""
        return replace(self, scopes=self.scopes - {Scope.ADMIN})

    def require(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise PermissionDenied(f"this key lacks the scope '{scope}'; use a key that has it")

    def require_model(self, model: str) -> None:
        if self.models is not None and model not in self.models:
            raise PermissionDenied("this key may not use that model; ask for it or use another key", param="model")

    def sees(self, path: str) -> bool:
        """Whether an object is this key's own: itself or minted from it. Admins see all."""
        return self.is_admin or path == self.path or path.startswith(self.path + "/")


OPERATOR = Identity(key_id="operator", path="operator/operator", scopes=ALL_SCOPES)
"""Whoever can open the database on the machine itself."""
