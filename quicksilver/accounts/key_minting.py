"""Making, rotating, narrowing and listing API keys, and the first key of all.

A key made by a key lies below it: it draws on its maker's purse too and can do nothing its maker cannot, so no number
of keys adds up to more power or more money than the first one had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from quicksilver.accounts.identity import OPERATOR, Identity, Scope, parse_scopes
from quicksilver.accounts.keys import Pepper, display_of, make_secret
from quicksilver.accounts.organizations import Directory, clean_name, find_purse, find_users, limit_columns
from quicksilver.accounts.schema import api_keys, purses, secrets, settings, usage, users
from quicksilver.accounts.store import upsert
from quicksilver.accounts.views import HOUR_S, KeyDraft, KeyRecord, NewKey, PurseRecord, UserRecord
from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied

MAX_DEPTH = 6
"""Organisation, project, and a key with up to three makers above it."""
MAX_OVERLAP_S = 30 * 86_400
MAX_BELOW = 1_000
"""Keys that may lie below one key, revoked ones counted: a leaked key must not fill the disk."""


class Mint:
    """Keys, over a directory. Synchronous, like it."""

    def __init__(self, directory: Directory, pepper: Pepper) -> None:
        self._directory = directory
        self._store = directory.store
        self._pepper = pepper

    def create_key(self, by: Identity, draft: KeyDraft) -> NewKey:
        by.require(Scope.KEYS)
        draft = replace(draft, scopes=parse_scopes(draft.scopes))
        _require_subset(by, draft.scopes, draft.models)
        if by.expires_at is not None and (draft.expires_at is None or draft.expires_at > by.expires_at):
            raise PermissionDenied("a key cannot outlive its maker", param="expires_at")
        with self._store.write() as connection:
            above = self._place_of(connection, by, draft)
            self._require_user(connection, above, draft.user_id)
            return self._insert_key(connection, above, draft)

    def rotate_key(self, by: Identity, key_id: str, overlap_s: int = 0) -> NewKey:
        """A new secret for the same key, its budget and its history. Old secrets still work for `overlap_s`."""
        by.require(Scope.KEYS)
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(f"overlap lies between 0 and {MAX_OVERLAP_S} seconds", param="overlap_s")
        ends_at = int(self._directory.clock()) + overlap_s
        with self._store.write() as connection:
            find_purse(connection, by, key_id, "key")
            older = secrets.c.key_id == key_id, secrets.c.expires_at.is_(None) | (secrets.c.expires_at > ends_at)
            connection.execute(update(secrets).where(*older).values(expires_at=ends_at))
            return self._insert_secret(connection, key_id)

    def narrow_key(self, by: Identity, key_id: str, scopes: frozenset[Scope], models: frozenset[str] | None) -> None:
        """Give a key these scopes and models, at most those of `by`. Keys it made lose what it loses."""
        by.require(Scope.KEYS)
        scopes = parse_scopes(scopes)
        _require_subset(by, scopes, models)
        with self._store.write() as connection:
            find_purse(connection, by, key_id, "key")
            if key_id == by.key_id:
                raise PermissionDenied("a key cannot change its own rights")
            connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(_rights(scopes, models)))

    def list_keys(self, by: Identity, within: str = "") -> list[KeyRecord]:
        """Keys that `by` may see, oldest first, below the organisation, project or key `within` if one is named."""
        return self._described(self._directory.list_purses(by, "key", within))

    def get_key(self, by: Identity, key_id: str) -> KeyRecord:
        return self._described([self._directory.get_purse(by, key_id, "key")])[0]

    def _described(self, shown: Sequence[PurseRecord]) -> list[KeyRecord]:
        ids = [purse.id for purse in shown]
        last_hour = select(usage.c.key_id, func.max(usage.c.hour)).where(usage.c.key_id.in_(ids))
        with self._store.read() as connection:
            rows = {row.id: row for row in connection.execute(select(api_keys).where(api_keys.c.id.in_(ids)))}
            found = connection.execute(select(secrets).where(secrets.c.key_id.in_(ids))).all()
            hours = {row[0]: row[1] for row in connection.execute(last_hour.group_by(usage.c.key_id))}
            owners = find_users(connection, {row.user_id for row in rows.values() if row.user_id})
        now = self._directory.clock()
        displays: dict[str, list[str]] = {}
        for row in sorted(found, key=lambda row: row.created_at):
            if row.expires_at is None or now < row.expires_at:
                displays.setdefault(row.key_id, []).append(row.display)
        return [
            _key_record(purse, rows[purse.id], tuple(displays.get(purse.id, ())), owners, hours.get(purse.id))
            for purse in shown
        ]

    def bootstrap(self) -> NewKey | None:
        """The first admin key, in an organisation of its own without a bound; None when it was made before."""
        done = {"name": "bootstrapped", "value": "yes"}
        with self._store.write() as connection:
            mark = upsert(connection, settings).values(done).on_conflict_do_nothing(index_elements=["name"])
            if connection.execute(mark.returning(settings.c.name)).one_or_none() is None:
                return None
            org_id = self._directory.insert_purse(connection, "org", "", "operators", None)
            project_id = self._directory.insert_purse(connection, "project", org_id, "default", None)
            draft = KeyDraft("bootstrap admin", project_id, scopes=parse_scopes([Scope.ADMIN]))
            return self._insert_key(connection, find_purse(connection, OPERATOR, project_id), draft)

    def _place_of(self, connection: Connection, by: Identity, draft: KeyDraft) -> PurseRecord:
        """The purse below which the key will lie."""
        if by.is_admin:
            return find_purse(connection, by, draft.project_id, "project")
        if draft.project_id not in ("", by.project_id):
            raise NotFound("no such organisation, project or key")
        if len(by.purse_ids) >= MAX_DEPTH:
            raise PermissionDenied("keys cannot be nested deeper; make it with a key further up")
        below = select(func.count()).where(purses.c.path.startswith(by.path + "/", autoescape=True))
        if connection.execute(below).scalar_one() >= MAX_BELOW:
            raise PermissionDenied(f"this key has made {MAX_BELOW} keys, which is the limit; rotate them instead")
        return find_purse(connection, by, by.key_id, "key")

    def _require_user(self, connection: Connection, above: PurseRecord, user_id: str | None) -> None:
        if user_id is not None:
            found = select(users.c.id).where(users.c.id == user_id, users.c.org_id == above.path.split("/")[0])
            if connection.execute(found.where(users.c.disabled_at.is_(None))).one_or_none() is None:
                raise NotFound("no such user")

    def _insert_key(self, connection: Connection, above: PurseRecord, draft: KeyDraft) -> NewKey:
        key_id = self._directory.insert_purse(connection, "key", above.path, draft.name, draft.budget)
        limits = draft.limits or self._directory.config.key_limits
        connection.execute(update(purses).where(purses.c.id == key_id).values(limit_columns(limits)))
        row = {
            "id": key_id,
            "user_id": draft.user_id,
            "expires_at": draft.expires_at,
            **_rights(draft.scopes, draft.models),
        }
        connection.execute(insert(api_keys).values(row))
        return self._insert_secret(connection, key_id)

    def _insert_secret(self, connection: Connection, key_id: str) -> NewKey:
        secret = make_secret()
        row = {"digest": self._pepper.key_digest(secret), "key_id": key_id, "display": display_of(secret)}
        connection.execute(insert(secrets).values(created_at=int(self._directory.clock()), **row))
        return NewKey(key_id, secret)


def _require_subset(by: Identity, scopes: frozenset[Scope], models: frozenset[str] | None) -> None:
    """A key may hand out what it has, and nothing else."""
    if not scopes <= by.scopes:
        raise PermissionDenied("a key can only be given scopes that its maker has", param="scopes")
    if by.models is not None and (models is None or not models <= by.models):
        raise PermissionDenied("a key can only be given models that its maker may use", param="models")


def _rights(scopes: frozenset[Scope], models: frozenset[str] | None) -> dict[str, Any]:
    if any(letter.isspace() for model in models or () for letter in clean_name(model, "models")):
        raise InvalidRequest("model names hold no spaces", param="models")
    return {"scopes": " ".join(sorted(scopes)), "models": None if models is None else " ".join(sorted(models))}


def _key_record(
    purse: PurseRecord, row: Any, displays: tuple[str, ...], owners: Mapping[str, UserRecord], last_hour: int | None
) -> KeyRecord:
    return KeyRecord(
        purse=purse,
        scopes=parse_scopes(row.scopes.split()),
        models=None if row.models is None else frozenset(row.models.split()),
        expires_at=row.expires_at,
        user=owners.get(row.user_id),
        displays=displays,
        last_used_at=None if last_hour is None else last_hour * HOUR_S,
    )
