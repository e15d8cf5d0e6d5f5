"""ObjectStore: objects that projects stored, by owner, kind and id. No owner can read the objects of another one.

Every change is one transaction, which is on disk when the method returns. Bodies are opaque bytes. ObjectScan reads the
objects of all owners, for processes that work for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, inspect, not_, select, update

from quicksilver.accounts.migrations import m0003_objects
from quicksilver.accounts.records import StoredObject, StoredReply
from quicksilver.accounts.schema import objects
from quicksilver.accounts.store import Store, replacing
from quicksilver.errors import Conflict

_KEY = ("owner", "kind", "id")
_REPLACED = ("parent", "size", "is_open", "leased_by", "leased_until", "body")


def open_local(path: Path) -> ObjectStore:
    """The store of a server without accounts: a SQLite file with this table alone."""
    store = Store(f"sqlite:///{path}")
    with store.write() as connection:
        if not inspect(connection).has_table("objects"):
            m0003_objects(connection)
    return ObjectStore(store)


class ObjectStore:
    """Blocking. Safe to call from several threads and processes."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def put(self, owner: str, stored: Sequence[StoredObject]) -> None:
        """Inserts the objects; one that exists is replaced and keeps its place and time."""
        if stored:
            with self._store.write() as connection:
                put_objects(connection, owner, stored, self._clock())

    def keep(self, reply: StoredReply) -> None:
        """Inserts what a reply leaves. Raises Conflict if its lease is lost."""
        with self._store.write() as connection:
            require_lease(connection, reply)
            put_objects(connection, reply.owner, reply.objects, self._clock())

    def add(self, owner: str, stored: StoredObject) -> bool:
        """Inserts the object unless it exists; whether it was inserted."""
        with self._store.write() as connection:
            if connection.execute(_named(owner, stored.kind, [stored.id])).first() is not None:
                return False
            connection.execute(objects.insert().values(**_row(owner, stored, self._clock())))
            return True

    def get(self, owner: str, kind: str, object_id: str) -> StoredObject | None:
        with self._store.read() as connection:
            row = connection.execute(_named(owner, kind, [object_id])).one_or_none()
        return None if row is None else _object(row)

    def named(
        self, owner: str, kinds: Collection[str], ids: Collection[str], max_bytes: int
    ) -> list[StoredObject] | None:
        """Those of these objects that exist; None if their bodies have more than `max_bytes`."""
        own = and_(objects.c.owner == owner, objects.c.kind.in_(sorted(kinds)), objects.c.id.in_(sorted(ids)))
        with self._store.read() as connection:
            if _num_bytes(connection, owner, own) > max_bytes:
                return None
            return [_object(row) for row in connection.execute(select(objects).where(own))]

    def update(
        self, owner: str, kind: str, object_id: str, change: Callable[[StoredObject], StoredObject | None]
    ) -> StoredObject | None:
        """Replaces an object by the result of `change`, in one transaction. If that is None, it is kept. Returns the
        object as it is stored afterwards, or None if there is none."""
        with self._store.write() as connection:
            row = connection.execute(_named(owner, kind, [object_id]).with_for_update()).one_or_none()
            if row is None:
                return None
            changed = change(_object(row))
            if changed is None:
                return _object(row)
            values = {name: value for name, value in _row(owner, changed, self._clock()).items() if name in _REPLACED}
            connection.execute(update(objects).where(objects.c.seq == row.seq).values(**values))
            return changed

    def find(
        self, owner: str, kind: str, parent: str = "", *, after: str = "", limit: int = 100, is_descending: bool = False
    ) -> list[StoredObject] | None:
        """Objects in the order of their insertion, after the one with the id `after`. None: there is no such id."""
        with self._store.read() as connection:
            query = _listing(connection, owner, kind, parent, after, is_descending=is_descending)
            if query is None:
                return None
            rows = connection.execute(query.limit(limit)).all()
        return [_object(row) for row in rows]

    def page(
        self,
        owner: str,
        kind: str,
        parent: str = "",
        *,
        after: str = "",
        limit: int,
        max_bytes: int,
        is_descending: bool = False,
    ) -> tuple[list[StoredObject], bool] | None:
        """As `find`, with at most `max_bytes` of bodies but at least one object, and whether more objects follow."""
        with self._store.read() as connection:
            query = _listing(connection, owner, kind, parent, after, is_descending=is_descending)
            if query is None:
                return None
            sizes = query.with_only_columns(objects.c.size).limit(limit + 1)
            listed = list(connection.execute(sizes).scalars())
            num_taken = _num_within(listed[:limit], max_bytes)
            rows = connection.execute(query.limit(num_taken)).all()
        return [_object(row) for row in rows], len(listed) > num_taken

    def extent(self, owner: str, kind: str, parent: str) -> tuple[int, int]:
        """How many objects of this kind the parent contains, and the bytes of their bodies."""
        size = func.coalesce(func.sum(objects.c.size), 0)
        own = and_(objects.c.owner == owner, objects.c.kind == kind, objects.c.parent == parent)
        with self._store.read() as connection:
            num_objects, num_bytes = connection.execute(select(func.count(), size).where(own)).one()
        return int(num_objects), int(num_bytes)

    def count(self, owner: str, kind: str, parent: str = "") -> int:
        query = select(func.count()).where(objects.c.owner == owner, objects.c.kind == kind, objects.c.parent == parent)
        with self._store.read() as connection:
            return int(connection.execute(query).scalar_one())

    def delete(self, owner: str, kind: str, object_id: str) -> bool:
        """Deletes the object with all that it contains; whether it existed."""
        own = and_(objects.c.owner == owner, objects.c.kind == kind, objects.c.id == object_id)
        with self._store.write() as connection:
            # An id of another kind deletes nothing: its contents belong to an object that stays.
            if not connection.execute(delete(objects).where(own)).rowcount:
                return False
            _delete_inside(connection, owner, object_id)
            return True

    def delete_inside(self, owner: str, parent: str) -> None:
        """Deletes all that the object contains."""
        with self._store.write() as connection:
            _delete_inside(connection, owner, parent)

    def every(self, kind: str) -> Iterator[tuple[str, StoredObject]]:
        """All objects of this kind with their owners, in the order of their insertion."""
        seq = 0
        while True:
            query = select(objects).where(objects.c.kind == kind, objects.c.seq > seq).order_by(objects.c.seq)
            with self._store.read() as connection:
                rows = connection.execute(query.limit(500)).all()
            if not rows:
                return
            yield from ((row.owner, _object(row)) for row in rows)
            seq = rows[-1].seq

    def delete_orphans(self, kind: str, before: float) -> None:
        """Deletes objects of this kind that are older than `before` and whose parent does not exist."""
        parents = objects.alias()
        has_parent = exists().where(parents.c.owner == objects.c.owner, parents.c.id == objects.c.parent)
        old = and_(objects.c.kind == kind, objects.c.created_at < before)
        orphaned = select(objects.c.owner, objects.c.parent).where(old, not_(has_parent)).distinct()
        with self._store.read() as connection:
            found = connection.execute(orphaned).all()
        for owner, parent in found:
            with self._store.write() as connection:
                own = and_(objects.c.owner == owner, objects.c.parent == parent)
                connection.execute(delete(objects).where(old, own, not_(has_parent)))

    def ids(self, owner: str, kind: str, parent: str) -> list[str]:
        own = and_(objects.c.owner == owner, objects.c.kind == kind, objects.c.parent == parent)
        with self._store.read() as connection:
            return list(connection.execute(select(objects.c.id).where(own)).scalars())

    def num_bytes(self, owner: str) -> int:
        with self._store.read() as connection:
            return _num_bytes(connection, owner)

    def num_kept_bytes(self, owner: str, kinds: Collection[str]) -> int:
        """The bytes of the objects that `trim` with these kinds never deletes."""
        trimmed = and_(objects.c.kind.in_(sorted(kinds)), objects.c.is_open == 0)
        with self._store.read() as connection:
            return _num_bytes(connection, owner, not_(trimmed))

    def trim(
        self, owner: str, kinds: Collection[str], max_bytes: int, before: float, aged: Collection[str] = ()
    ) -> None:
        """Deletes finished objects of these kinds and of the kinds `aged` that are older than `before`, then the oldest
        ones of `kinds` until all objects of the owner have at most `max_bytes`."""
        finished = and_(objects.c.owner == owner, objects.c.is_open == 0)
        own = and_(finished, objects.c.kind.in_(sorted(kinds)))
        old = and_(finished, objects.c.kind.in_(sorted({*kinds, *aged})), objects.c.created_at < before)
        with self._store.write() as connection:
            connection.execute(delete(objects).where(old))
            excess = _num_bytes(connection, owner) - max_bytes
            if excess <= 0:
                return
            oldest = []
            for row in connection.execute(select(objects.c.seq, objects.c.size).where(own).order_by(objects.c.seq)):
                if excess <= 0:
                    break
                oldest.append(row.seq)
                excess -= row.size
            connection.execute(delete(objects).where(objects.c.seq.in_(oldest)))

    def claim(
        self, kind: str, process: str, lease_s: int, except_owners: Collection[str] = ()
    ) -> tuple[str, StoredObject] | None:
        """The oldest open object that no process works on, with its owner; its lease is now held by `process`."""
        now = int(self._clock())
        is_free = and_(objects.c.kind == kind, objects.c.is_open == 1, objects.c.leased_until < now)
        is_free = and_(is_free, objects.c.owner.not_in(sorted(except_owners)))
        with self._store.write() as connection:
            row = connection.execute(select(objects).where(is_free).order_by(objects.c.seq).limit(1)).one_or_none()
            if row is None:
                return None
            lease = {"leased_by": process, "leased_until": now + lease_s}
            changed = connection.execute(update(objects).where(objects.c.seq == row.seq, is_free).values(**lease))
            return (row.owner, _object(row)) if changed.rowcount else None

    def renew(self, owner: str, kind: str, object_id: str, process: str, lease_s: int) -> bool:
        """Extends the lease; false if this process no longer holds it or the object is finished or deleted."""
        held = and_(objects.c.owner == owner, objects.c.kind == kind, objects.c.id == object_id)
        held = and_(held, objects.c.leased_by == process, objects.c.is_open == 1)
        with self._store.write() as connection:
            change = update(objects).where(held).values(leased_until=int(self._clock()) + lease_s)
            return connection.execute(change).rowcount > 0

    def finish(self, owner: str, stored: StoredObject, process: str, *, is_emptied: bool = False) -> bool:
        """Replaces the body of an open object whose lease `process` holds, and closes it; whether it was open.
        `is_emptied` deletes what it contains in the same transaction."""
        own = and_(objects.c.owner == owner, objects.c.kind == stored.kind, objects.c.id == stored.id)
        held = and_(own, objects.c.leased_by == process, objects.c.is_open == 1)
        closed = {"body": stored.body, "size": len(stored.body), "is_open": 0, "leased_by": "", "leased_until": 0}
        with self._store.write() as connection:
            if not connection.execute(update(objects).where(held).values(**closed)).rowcount:
                return False
            if is_emptied:
                _delete_inside(connection, owner, stored.id)
            return True

    def close(self) -> None:
        self._store.close()


def put_objects(connection: Connection, owner: str, stored: Sequence[StoredObject], now: float) -> None:
    """As `ObjectStore.put`, in the caller's transaction."""
    change = replacing(connection.dialect.name, objects, _KEY, _REPLACED)
    connection.execute(change, [_row(owner, each, now) for each in stored])


def require_lease(connection: Connection, reply: StoredReply) -> None:
    """Raises Conflict if the reply needs a lease that is not held, since its object was cancelled or deleted."""
    if not reply.leased_by:
        return
    first = reply.objects[0]
    own = _named(reply.owner, first.kind, [first.id]).with_for_update()
    held = own.where(objects.c.leased_by == reply.leased_by, objects.c.is_open == 1)
    if connection.execute(held).first() is None:
        raise Conflict(f"this {first.kind} was cancelled or deleted")


def _row(owner: str, stored: StoredObject, now: float) -> dict[str, Any]:
    return {
        "owner": owner,
        "kind": stored.kind,
        "id": stored.id,
        "parent": stored.parent,
        "created_at": stored.created_at or int(now),
        "size": len(stored.body),
        "is_open": int(stored.is_open),
        "leased_by": stored.leased_by,
        "leased_until": stored.leased_until,
        "body": stored.body,
    }


def _listing(
    connection: Connection, owner: str, kind: str, parent: str, after: str, *, is_descending: bool
) -> Select[Any] | None:
    """The objects of a parent in the order of their insertion, after the one with the id `after`. None: there is no
    such id."""
    query = select(objects).where(objects.c.owner == owner, objects.c.kind == kind, objects.c.parent == parent)
    if after:
        seq = connection.execute(_named(owner, kind, [after]).with_only_columns(objects.c.seq)).scalar()
        if seq is None:
            return None
        query = query.where(objects.c.seq < seq if is_descending else objects.c.seq > seq)
    return query.order_by(objects.c.seq.desc() if is_descending else objects.c.seq)


def _named(owner: str, kind: str, ids: Sequence[str]) -> Select[Any]:
    return select(objects).where(objects.c.owner == owner, objects.c.kind == kind, objects.c.id.in_(ids))


def _delete_inside(connection: Connection, owner: str, parent: str) -> None:
    connection.execute(delete(objects).where(objects.c.owner == owner, objects.c.parent == parent))


def _num_within(sizes: Sequence[int], max_bytes: int) -> int:
    """The length of the longest start whose sum is at most `max_bytes`; 1 if the first one alone is larger."""
    sums = accumulate(sizes)
    return max(min(1, len(sizes)), sum(total <= max_bytes for total in sums))


def _num_bytes(connection: Connection, owner: str, *conditions: ColumnElement[bool]) -> int:
    query = select(func.coalesce(func.sum(objects.c.size), 0)).where(objects.c.owner == owner, *conditions)
    return int(connection.execute(query).scalar_one())


def _object(row: Any) -> StoredObject:
    return StoredObject(
        row.kind,
        row.id,
        bytes(row.body),
        row.parent,
        row.created_at,
        bool(row.is_open),
        row.leased_by,
        row.leased_until,
    )


# Objects that one query of a scan reads.
PAGE_LEN = 200


class ObjectScan:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store._store

    def all(self, kind: str) -> Iterator[tuple[str, StoredObject]]:
        """Every object of the kind with its owner, oldest first."""
        return self._pages(objects.c.kind == kind)

    def free(self, kind: str) -> Iterator[tuple[str, StoredObject]]:
        """Open objects that no process works on, with their owners, oldest first."""
        now = int(time.time())
        return self._pages(and_(objects.c.kind == kind, objects.c.is_open == 1, objects.c.leased_until < now))

    def delete_older(self, kind: str, before: float) -> int:
        """Deletes objects of the kind that were stored before this time; how many there were."""
        with self._store.write() as connection:
            old = and_(objects.c.kind == kind, objects.c.created_at < int(before))
            return connection.execute(delete(objects).where(old)).rowcount

    def delete_orphans(self, kind: str, parents: Collection[str], before: float) -> int:
        """Deletes objects of the kind that were stored before this time and whose parent, an object of one of the kinds
        `parents`, does not exist; how many there were."""
        parent = objects.alias()
        found = and_(
            parent.c.owner == objects.c.owner,
            parent.c.kind.in_(sorted(parents)),
            parent.c.id == objects.c.parent,
        )
        old = and_(objects.c.kind == kind, objects.c.created_at < int(before))
        with self._store.write() as connection:
            return connection.execute(delete(objects).where(old, ~exists(select(parent.c.id).where(found)))).rowcount

    def _pages(self, where: ColumnElement[bool]) -> Iterator[tuple[str, StoredObject]]:
        after = -1
        while True:
            query = select(objects).where(where, objects.c.seq > after).order_by(objects.c.seq).limit(PAGE_LEN)
            with self._store.read() as connection:
                rows = connection.execute(query).all()
            yield from ((row.owner, _object(row)) for row in rows)
            if len(rows) < PAGE_LEN:
                return
            after = rows[-1].seq
