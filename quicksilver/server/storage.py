"""Storage: the objects that requests store, in the accounts database or, without accounts, in a file of `home`.

An object belongs to the project of the key that stored it. Without accounts all callers are one project.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.list_query import ListQuery

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore
    from quicksilver.accounts.service import Accounts

T = TypeVar("T")
DAY_S = 86_400
# Kinds that are deleted when they are old or a project stores too much.
EVICTED = ("response", "chat", "capture")


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

    def require_on(self, param: str) -> None:
        if not self.is_on:
            raise InvalidRequest(f"{param}: this server stores nothing", param=param)

    async def run(self, work: Callable[[ObjectStore], T]) -> T:
        """The result of blocking work on the store."""
        if self._accounts is not None:
            return await self._accounts.stored(work)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(self._open_local()))

    async def put(self, owner: str, *stored: StoredObject) -> None:
        """Writes the objects, and deletes old ones where the project stores too much."""
        config = self._config

        def write(store: ObjectStore) -> None:
            store.put(owner, stored)
            store.trim(owner, EVICTED, config.stored_bytes, time.time() - config.stored_days * DAY_S)

        await self.run(write)

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
        """The objects of one page, and whether more follow."""
        if not self.is_on:
            return [], False
        found = await self.run(
            lambda store: store.find(
                owner,
                kind,
                parent,
                after=query.after,
                limit=query.limit + 1,
                is_descending=query.order == "desc",
            )
        )
        if found is None:
            raise InvalidRequest("after: no such object in this list", param="after")
        return found[: query.limit], len(found) > query.limit

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
