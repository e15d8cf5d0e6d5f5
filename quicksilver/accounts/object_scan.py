"""ObjectScan: queries over the stored objects of all owners, for processes that work for all of them. Blocking."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from sqlalchemy import ColumnElement, and_, delete, exists, select

from quicksilver.accounts.objects import ObjectStore, _object
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.schema import objects

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
