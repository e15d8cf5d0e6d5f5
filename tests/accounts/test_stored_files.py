"""Files in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import BytesIO

import pytest

from quicksilver.accounts import stored_files
from quicksilver.accounts.migrations import upgrade
from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.store import Store
from quicksilver.accounts.stored_files import FILE, PIECE, delete_remains, describe, read_pieces, write_file


@pytest.fixture
def store(empty_url: str) -> Iterator[ObjectStore]:
    store = Store(empty_url)
    upgrade(store)
    yield ObjectStore(store)
    store.close()


def test_interrupted_and_expired_files_are_deleted(store: ObjectStore) -> None:
    kept, expired = describe("a", "batch", 3, int(time.time()) + 3600), describe("b", "batch", 3, 1)
    for reply in (kept, expired):
        write_file(store, "x", reply, BytesIO(b"abc"))
    old = int(time.time()) - 2 * stored_files.INTERRUPTED_S
    store.put("x", [StoredObject(PIECE, "torn/0", b"old", "torn", old), StoredObject(PIECE, "new/0", b"new", "new")])
    # The adapter of a model has pieces without a file.
    store.put("x", [StoredObject("model", "m", b"{}"), StoredObject(PIECE, "m/0", b"kept", "m", old)])
    store.put("y", [StoredObject(PIECE, f"{kept['id']}/0", b"other owner", kept["id"], old)])
    delete_remains(store)
    assert store.get("x", FILE, expired["id"]) is None
    assert b"".join(read_pieces(store, "x", kept["id"])) == b"abc"
    assert store.ids("x", PIECE, expired["id"]) == store.ids("x", PIECE, "torn") == []
    assert store.ids("x", PIECE, "new") == ["new/0"]
    assert store.ids("x", PIECE, "m") == ["m/0"]
    assert store.num_bytes("y") == 0


def test_a_file_that_is_written_again_has_no_old_pieces(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 4)
    reply = describe("a", "batch", 10)
    write_file(store, "", reply, BytesIO(b"0123456789"))
    write_file(store, "", reply, BytesIO(b"abc"))
    assert b"".join(read_pieces(store, "", reply["id"])) == b"abc"
