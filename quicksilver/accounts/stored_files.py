"""Files as stored objects: a description, and the content in pieces. Blocking."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import orjson

from quicksilver.accounts.records import StoredObject

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

FILE, PIECE = "file", "piece"
PIECE_BYTES = 2**20
# A file whose description is not written so long after a piece of it never becomes complete.
INTERRUPTED_S = 3600


def describe(filename: str, purpose: str, num_bytes: int, expires_at: int | None = None) -> dict[str, Any]:
    return {
        "id": f"file-{uuid.uuid4().hex}",
        "object": "file",
        "bytes": num_bytes,
        "created_at": int(time.time()),
        "expires_at": expires_at,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


def write_file(store: ObjectStore, owner: str, reply: dict[str, Any], content: IO[bytes]) -> None:
    """The description is written last, so that a file that can be found is complete."""
    content.seek(0)
    # Pieces of an earlier attempt that was interrupted.
    store.delete_inside(owner, reply["id"])
    for number, piece in enumerate(iter(lambda: content.read(PIECE_BYTES), b"")):
        store.put(owner, [StoredObject(PIECE, f"{reply['id']}/{number:06d}", piece, reply["id"])])
    store.put(owner, [StoredObject(FILE, reply["id"], orjson.dumps(reply), created_at=reply["created_at"])])


def has_expired(file: Mapping[str, Any]) -> bool:
    expires_at = file.get("expires_at")
    return expires_at is not None and expires_at <= time.time()


def delete_remains(store: ObjectStore) -> None:
    """Deletes files that have expired, and pieces without a file whose writing was interrupted."""
    for owner, stored in store.every(FILE):
        if has_expired(orjson.loads(stored.body)):
            store.delete(owner, FILE, stored.id)
    store.delete_orphans(PIECE, time.time() - INTERRUPTED_S)


def read_pieces(store: ObjectStore, owner: str, file_id: str) -> Iterator[bytes]:
    """The content in order."""
    after = ""
    while found := store.find(owner, PIECE, file_id, after=after, limit=1):
        yield found[0].body
        after = found[0].id
