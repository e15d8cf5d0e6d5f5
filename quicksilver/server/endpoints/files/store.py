"""Files as stored objects: a description, and the content in pieces."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from quicksilver.accounts.stored_files import (
    FILE,
    PIECE,
    delete_remains,
    describe,
    has_expired,
    read_pieces,
    write_file,
)
from quicksilver.errors import InvalidRequest, NotFound, QuicksilverError
from quicksilver.server.storage import Storage, read_json

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

__all__ = [
    "FILE",
    "PIECE",
    "describe",
    "get_file",
    "has_expired",
    "read_content",
    "read_pieces",
    "save_file",
    "sweep_files",
    "write_file",
]

SWEEP_S = 600.0


async def sweep_files(storage: Storage) -> None:
    """Deletes expired files and the pieces of uploads that were interrupted, as long as the server runs."""
    while True:
        # What cannot be deleted now is deleted by a later sweep.
        with suppress(QuicksilverError):
            if storage.has_objects:
                await storage.run(delete_remains)
        await asyncio.sleep(SWEEP_S)


async def save_file(storage: Storage, owner: str, reply: dict[str, Any], content: IO[bytes], max_bytes: int) -> None:
    """Raises InvalidRequest where the project would store more than `max_bytes`."""

    def write(store: ObjectStore) -> None:
        if store.num_bytes(owner) + reply["bytes"] > max_bytes:
            raise InvalidRequest(
                f"file: this project may store {max_bytes} bytes; delete files first",
                param="file",
                code="quota_exceeded",
            )
        write_file(store, owner, reply, content)

    await storage.run(write)


async def get_file(storage: Storage, owner: str, file_id: str) -> dict[str, Any]:
    """Raises NotFound also for a file that has expired and was not deleted yet."""
    file = read_json(await storage.get(owner, FILE, file_id))
    if has_expired(file):
        raise NotFound("There is no file with this id.")
    return file


async def read_content(storage: Storage, owner: str, file_id: str) -> bytes:
    await get_file(storage, owner, file_id)
    return await storage.run(lambda store: b"".join(read_pieces(store, owner, file_id)))
