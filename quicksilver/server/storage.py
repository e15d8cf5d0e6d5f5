"""Storage: the objects that requests store, in the accounts database or, without accounts, in a file of `home`.

An object belongs to the project of the key that stored it. Without accounts all callers are one project.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from quicksilver.accounts.records import StoredObject, StoredReply
from quicksilver.errors import InvalidRequest, NotFound, QuicksilverError
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.list_query import MAX_LISTED, ListQuery

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore
    from quicksilver.accounts.service import Accounts

T = TypeVar("T")
DAY_S = 86_400
# Kinds of which finished objects are deleted when they are old or a project stores too much.
EVICTED = ("response", "output", "chat", "capture")
# Kinds of which finished objects are deleted when they are old.
AGED = ("batch",)
# Most bytes of all bodies on one page of a list.
PAGE_BYTES = 8 * 2**20


class Storage:
    def __init__(self, accounts: Accounts | None, config: ServerConfig) -> None:
        self._accounts = accounts
        self._config = config
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="storage")
        self._local: ObjectStore | None = None
        self._opening = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self._config.stores

    @property
    def has_objects(self) -> bool:
        """False where nothing can have been stored yet; the store is not opened for this."""
        return self.is_on and (self._accounts is not None or (self._config.home / "objects.db").exists())

    @property
    def history_bytes(self) -> int:
        """Of stored items that one request may continue: as many as a body may have."""
        return self._config.body_bytes

    def require_on(self, param: str) -> None:
        if not self.is_on:
            raise InvalidRequest(f"{param}: this server stores nothing", param=param)

    async def run(self, work: Callable[[ObjectStore], T]) -> T:
        """The result of blocking work on the store."""
        if self._accounts is not None:
            return await self._accounts.stored(work)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(self._open_local()))

    async def put(self, owner: str, *stored: StoredObject) -> None:
        """Writes the objects, and deletes old ones where the project stores too much. Raises InvalidRequest where an
        object that is kept does not fit."""

        def write(store: ObjectStore) -> None:
            if any(each.kind not in EVICTED or each.is_open for each in stored):
                self._check_room(store, owner, sum(len(each.body) for each in stored))
            store.put(owner, stored)
            self._trim(store, owner)

        await self.run(write)

    async def keep(self, stored: StoredReply, *, is_written: bool) -> None:
        """Stores what a reply leaves, unless the ledger did so with the charge, and deletes old objects. Raises
        Conflict if its lease is lost."""
        if not is_written:
            await self.run(lambda store: store.keep(stored))
        # The reply is complete, whether or not old objects can be deleted now.
        with suppress(QuicksilverError):
            await self.run(lambda store: self._trim(store, stored.owner))

    def _trim(self, store: ObjectStore, owner: str) -> None:
        config = self._config
        store.trim(owner, EVICTED, config.stored_bytes, time.time() - config.stored_days * DAY_S, AGED)

    async def require_room(self, owner: str, num_bytes: int) -> None:
        """Raises InvalidRequest where `put` would refuse objects of this size."""
        await self.run(lambda store: self._check_room(store, owner, num_bytes))

    def _check_room(self, store: ObjectStore, owner: str, num_bytes: int) -> None:
        limit = self._config.stored_bytes
        if store.num_kept_bytes(owner, EVICTED) + num_bytes > limit:
            message = f"This project may store {limit} bytes; delete files or conversations first."
            raise InvalidRequest(message, code="quota_exceeded")

    async def get(self, owner: str, kind: str, object_id: str) -> StoredObject:
        """Raises NotFound also for an object of another project."""
        found = await self.run(lambda store: store.get(owner, kind, object_id)) if self.is_on else None
        if found is None:
            raise NotFound(f"There is no {kind} with this id.")
        return found

    async def delete(self, owner: str, kind: str, object_id: str) -> None:
        existed = await self.run(lambda store: store.delete(owner, kind, object_id)) if self.is_on else False
        if not existed:
            raise NotFound(f"There is no {kind} with this id.")

    async def page(self, owner: str, kind: str, query: ListQuery, parent: str = "") -> tuple[list[StoredObject], bool]:
        """The objects of one page, and whether more follow. A page of large objects has fewer than `query.limit`."""
        if not self.is_on:
            return [], False
        found = await self.run(
            lambda store: store.page(
                owner,
                kind,
                parent,
                after=query.after,
                limit=query.limit,
                max_bytes=PAGE_BYTES,
                is_descending=query.order == "desc",
            )
        )
        if found is None:
            raise InvalidRequest("after: no such object in this list", param="after")
        return found

    async def matching(
        self, owner: str, kind: str, query: ListQuery, read: Callable[[StoredObject], dict[str, Any] | None]
    ) -> tuple[list[dict[str, Any]], bool]:
        """One page of the objects that `read` does not turn into None, as it reads them, and whether more follow."""
        found: list[dict[str, Any]] = []
        query, limit, has_more = query.model_copy(update={"limit": MAX_LISTED}), query.limit, True
        while has_more and len(found) <= limit:
            page, has_more = await self.page(owner, kind, query)
            found += [value for stored in page if (value := read(stored)) is not None]
            if page:
                query = query.model_copy(update={"after": page[-1].id})
        return found[:limit], len(found) > limit

    def _open_local(self) -> ObjectStore:
        with self._opening:
            if self._local is None:
                from quicksilver.accounts.objects import open_local

                self._local = open_local(self._config.home / "objects.db")
            return self._local


def write_json(value: Any) -> bytes:
    return orjson.dumps(value)


def read_json(stored: StoredObject) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(stored.body)
    return value


def list_reply(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """OpenAI's list of one page."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def page_of(items: list[dict[str, Any]], query: ListQuery) -> dict[str, Any]:
    """One page of a list that is in memory, oldest first."""
    ordered = items[::-1] if query.order == "desc" else items
    ids = [item["id"] for item in ordered]
    if query.after and query.after not in ids:
        raise InvalidRequest("after: no such object in this list", param="after")
    rest = ordered[ids.index(query.after) + 1 if query.after else 0 :]
    return list_reply(rest[: query.limit], len(rest) > query.limit)
