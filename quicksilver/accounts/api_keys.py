"""Creates, rotates, restricts and lists API keys, including the first admin key.

A key that is created with another key is its child in the path: its requests are charged to that key too, and it has
at most the rights of that key. Creating keys therefore never adds rights or money.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from quicksilver.accounts.identity import OPERATOR, Identity, Scope, parse_scopes, stored_scopes
from quicksilver.accounts.keys import Pepper, display_of, make_secret
from quicksilver.accounts.organizations import Organizations, clean_name, find_account, find_users, limit_columns
from quicksilver.accounts.records import HOUR_S, AccountRecord, KeyDraft, KeyRecord, NewKey, UserRecord
from quicksilver.accounts.schema import accounts, api_keys, secrets, settings, usage, users
from quicksilver.accounts.store import upsert
from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied

# Organisation, project, and four levels of keys.
MAX_DEPTH = 6
MAX_OVERLAP_S = 30 * 86_400
# Keys below one key, revoked ones included, so that a leaked key cannot fill the disk.
MAX_BELOW = 1_000


class ApiKeys:
    """Synchronous; a server calls it through `Accounts.admin`."""

    def __init__(self, organizations: Organizations, pepper: Pepper) -> None:
        self._organizations = organizations
        self._store = organizations.store
        self._pepper = pepper

    def create_key(self, by: Identity, draft: KeyDraft) -> NewKey:
        by.require(Scope.KEYS)
        draft = replace(draft, scopes=parse_scopes(draft.scopes))
        _require_subset(by, draft.scopes, draft.models)
        if by.expires_at is not None and (draft.expires_at is None or draft.expires_at > by.expires_at):
            raise PermissionDenied("a key cannot expire later than the key that creates it", param="expires_at")
        with self._store.write() as connection:
            above = self._place_of(connection, by, draft)
            self._require_user(connection, above, draft.user_id)
            return self._insert_key(connection, above, draft)

    def rotate_key(self, by: Identity, key_id: str, overlap_s: int = 0) -> NewKey:
        """A new secret for a key, which keeps its budget and usage. Old secrets stay valid for `overlap_s`."""
        by.require(Scope.KEYS)
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(f"overlap lies between 0 and {MAX_OVERLAP_S} seconds", param="overlap_s")
        ends_at = int(self._organizations.clock()) + overlap_s
        with self._store.write() as connection:
            find_account(connection, by, key_id, "key")
            older = secrets.c.key_id == key_id, secrets.c.expires_at.is_(None) | (secrets.c.expires_at > ends_at)
            connection.execute(update(secrets).where(*older).values(expires_at=ends_at))
            return self._insert_secret(connection, key_id)

    def narrow_key(self, by: Identity, key_id: str, scopes: frozenset[Scope], models: frozenset[str] | None) -> None:
        """Sets the scopes and models of a key to at most those of `by`. Keys below it lose the same rights."""
        by.require(Scope.KEYS)
        scopes = parse_scopes(scopes)
        _require_subset(by, scopes, models)
        with self._store.write() as connection:
            find_account(connection, by, key_id, "key")
            if key_id == by.key_id:
                raise PermissionDenied("a key cannot change its own rights")
            connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(_rights(scopes, models)))

    def list_keys(self, by: Identity, within: str = "") -> list[KeyRecord]:
        """Keys that `by` may see, oldest first; optionally only those below the account `within`."""
        return self._to_records(self._organizations.list_accounts(by, "key", within))

    def get_key(self, by: Identity, key_id: str) -> KeyRecord:
        return self._to_records([self._organizations.get_account(by, key_id, "key")])[0]

    def _to_records(self, listed: Sequence[AccountRecord]) -> list[KeyRecord]:
        ids = [account.id for account in listed]
        last_hour = select(usage.c.key_id, func.max(usage.c.hour)).where(usage.c.key_id.in_(ids))
        with self._store.read() as connection:
            rows = {row.id: row for row in connection.execute(select(api_keys).where(api_keys.c.id.in_(ids)))}
            found = connection.execute(select(secrets).where(secrets.c.key_id.in_(ids))).all()
            hours = {row[0]: row[1] for row in connection.execute(last_hour.group_by(usage.c.key_id))}
            owners = find_users(connection, {row.user_id for row in rows.values() if row.user_id})
        now = self._organizations.clock()
        displays: dict[str, list[str]] = {}
        for row in sorted(found, key=lambda row: row.created_at):
            if row.expires_at is None or now < row.expires_at:
                displays.setdefault(row.key_id, []).append(row.display)
        return [
            _key_record(account, rows[account.id], tuple(displays.get(account.id, ())), owners, hours.get(account.id))
            for account in listed
        ]

    def bootstrap(self) -> NewKey | None:
        """The first admin key, in an organisation with unlimited credits; None if it was made before."""
        done = {"name": "bootstrapped", "value": "yes"}
        with self._store.write() as connection:
            mark = upsert(connection, settings).values(done).on_conflict_do_nothing(index_elements=["name"])
            if connection.execute(mark.returning(settings.c.name)).one_or_none() is None:
                return None
            org_id = self._organizations.insert_account(connection, "org", "", "operators", None)
            project_id = self._organizations.insert_account(connection, "project", org_id, "default", None)
            draft = KeyDraft("bootstrap admin", project_id, scopes=parse_scopes([Scope.ADMIN]))
            return self._insert_key(connection, find_account(connection, OPERATOR, project_id), draft)

    def _place_of(self, connection: Connection, by: Identity, draft: KeyDraft) -> AccountRecord:
        """The account below which the key is created."""
        if by.is_admin:
            return find_account(connection, by, draft.project_id, "project")
        if draft.project_id not in ("", by.project_id):
            raise NotFound("no such organisation, project or key")
        if len(by.account_ids) >= MAX_DEPTH:
            raise PermissionDenied("keys cannot be nested deeper; create it with a key nearer to the project")
        below = select(func.count()).where(accounts.c.path.startswith(by.path + "/", autoescape=True))
        if connection.execute(below).scalar_one() >= MAX_BELOW:
            raise PermissionDenied(
                f"there are {MAX_BELOW} keys below this key, which is the limit; rotate them instead"
            )
        return find_account(connection, by, by.key_id, "key")

    def _require_user(self, connection: Connection, above: AccountRecord, user_id: str | None) -> None:
        if user_id is not None:
            found = select(users.c.id).where(users.c.id == user_id, users.c.org_id == above.path.split("/")[0])
            if connection.execute(found.where(users.c.disabled_at.is_(None))).one_or_none() is None:
                raise NotFound("no such user")

    def _insert_key(self, connection: Connection, above: AccountRecord, draft: KeyDraft) -> NewKey:
        key_id = self._organizations.insert_account(connection, "key", above.path, draft.name, draft.budget)
        limits = draft.limits or self._organizations.config.key_limits
        connection.execute(update(accounts).where(accounts.c.id == key_id).values(limit_columns(limits)))
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
        connection.execute(insert(secrets).values(created_at=int(self._organizations.clock()), **row))
        return NewKey(key_id, secret)


def _require_subset(by: Identity, scopes: frozenset[Scope], models: frozenset[str] | None) -> None:
    """A key can only pass on rights that it has."""
    if not scopes <= by.scopes:
        raise PermissionDenied("a key can only be given scopes that the creating key has", param="scopes")
    if by.models is not None and (models is None or not models <= by.models):
        raise PermissionDenied("a key can only be given models that the creating key may use", param="models")


def _rights(scopes: frozenset[Scope], models: frozenset[str] | None) -> dict[str, Any]:
    if any(letter.isspace() for model in models or () for letter in clean_name(model, "models")):
        raise InvalidRequest("model names must not contain spaces", param="models")
    return {"scopes": " ".join(sorted(scopes)), "models": None if models is None else " ".join(sorted(models))}


def _key_record(
    account: AccountRecord, row: Any, displays: tuple[str, ...], owners: Mapping[str, UserRecord], last_hour: int | None
) -> KeyRecord:
    return KeyRecord(
        account=account,
        scopes=stored_scopes(row.scopes),
        models=None if row.models is None else frozenset(row.models.split()),
        expires_at=row.expires_at,
        user=owners.get(row.user_id),
        displays=displays,
        # Usage is stored by the hour; the hour of the first use can begin before the key exists.
        last_used_at=None if last_hour is None else max(last_hour * HOUR_S, account.created_at),
    )
