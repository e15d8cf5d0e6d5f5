"""Files as stored objects: a description, and the content in pieces."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from quicksilver.accounts.stored_files import FILE, PIECE, describe, read_pieces, write_file
from quicksilver.errors import InvalidRequest
from quicksilver.server.storage import Storage, read_json

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

__all__ = ["FILE", "PIECE", "describe", "get_file", "read_content", "read_pieces", "save_file", "write_file"]


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
    return read_json(await storage.get(owner, FILE, file_id))


async def read_content(storage: Storage, owner: str, file_id: str) -> bytes:
    await storage.get(owner, FILE, file_id)
    return await storage.run(lambda store: b"".join(read_pieces(store, owner, file_id)))
