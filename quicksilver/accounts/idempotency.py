"""Idempotency keys of each API key: a claim while the request runs, then its saved reply for a day.

The claim is written in the transaction of the reservation and resolved in that of the settlement. A paid reply can be
read again; a released request leaves no claim.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from quicksilver.accounts.keys import Pepper
from quicksilver.accounts.records import Idempotency, SavedReply
from quicksilver.accounts.schema import replies
from quicksilver.accounts.store import replacing
from quicksilver.errors import Conflict, IdempotencyMismatch, InvalidRequest

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def make_idempotency(pepper: Pepper, key: str, body: bytes) -> Idempotency:
    """`body` is everything that makes two requests the same one: method, path and body."""
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest("an Idempotency-Key is 1 to 255 printable ASCII characters", param="Idempotency-Key")
    return Idempotency(key, pepper.digest("request-body", body))


def find_claims(
    connection: Connection, wanted: Collection[tuple[str, str]], since: float
) -> dict[tuple[str, str], Any]:
    """Claims made after `since`, by (key id, idempotency key)."""
    if not wanted:
        return {}
    query = select(replies).where(
        replies.c.key_id.in_({key_id for key_id, _ in wanted}),
        replies.c.idempotency_key.in_({key for _, key in wanted}),
        replies.c.created_at > since,
    )
    return {(row.key_id, row.idempotency_key): row for row in connection.execute(query)}


def saved_reply(claim: Any, idempotency: Idempotency) -> SavedReply:
    """The reply of a claim; raises Conflict while the request runs, IdempotencyMismatch for a different request."""
    if claim.body_digest != idempotency.body_digest:
        raise IdempotencyMismatch("this Idempotency-Key was used for a different request; use a new one")
    if claim.status is None:
        raise Conflict("a request with this Idempotency-Key is still running; try again when it has ended")
    return SavedReply(claim.status, bytes(claim.body))


def save_claims(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Writes claims; expired ones are overwritten."""
    if rows:
        fields = ("body_digest", "request_id", "created_at", "status", "body")
        change = replacing(connection.dialect.name, replies, ("key_id", "idempotency_key"), fields)
        connection.execute(change, [{"status": None, "body": None, **row} for row in rows])


def save_replies(connection: Connection, saved: dict[str, SavedReply]) -> None:
    if saved:
        change = update(replies).where(replies.c.request_id == bindparam("request"))
        rows = [{"request": request_id, "status": r.status, "body": r.body} for request_id, r in saved.items()]
        connection.execute(change.values(status=bindparam("status"), body=bindparam("body")), rows)


def move_claims(connection: Connection, moved: Mapping[str, str]) -> None:
    """Claims of one row become those of another: `moved` maps the old request id to the new one."""
    if moved:
        change = update(replies).where(replies.c.request_id == bindparam("old")).values(request_id=bindparam("new"))
        connection.execute(change, [{"old": old, "new": new} for old, new in moved.items()])


def drop_claims(connection: Connection, request_ids: Collection[str]) -> None:
    if request_ids:
        connection.execute(delete(replies).where(replies.c.request_id.in_(sorted(request_ids))))


def forget_old_replies(connection: Connection, since: float) -> None:
    """Deletes replies that were claimed before `since`; claims of running requests stay."""
    connection.execute(delete(replies).where(replies.c.created_at <= since, replies.c.status.is_not(None)))
