"""Queries over the objects of all owners."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quicksilver.accounts import objects as objects_module
from quicksilver.accounts.migrations import upgrade
from quicksilver.accounts.objects import ObjectScan, ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.store import Store


@pytest.fixture
def objects(empty_url: str) -> Iterator[ObjectStore]:
    store = Store(empty_url)
    upgrade(store)
    yield ObjectStore(store)
    store.close()


def test_objects_of_all_owners_are_found_in_order(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "PAGE_LEN", 2)
    for number in range(5):
        objects.put(f"owner {number % 2}", [StoredObject("job", f"id{number}", b"{}", is_open=number != 3)])
    objects.put("owner 0", [StoredObject("other", "id9", b"{}")])
    scan = ObjectScan(objects)
    expected = [(f"owner {number % 2}", f"id{number}") for number in range(5)]
    assert [(owner, each.id) for owner, each in scan.all("job")] == expected
    assert objects.claim("job", "me", 60) is not None
    assert [each.id for _, each in scan.free("job")] == ["id1", "id2", "id4"]


def test_old_objects_of_one_kind_are_deleted(objects: ObjectStore) -> None:
    for kind in ("capture", "chat"):
        objects.put("me", [StoredObject(kind, f"{kind}{age}", b"", created_at=1000 - age) for age in (0, 1)])
    assert ObjectScan(objects).delete_older("capture", 1000) == 1
    assert [objects.ids("me", kind, "") for kind in ("capture", "chat")] == [["capture0"], ["chat0", "chat1"]]


def test_old_parts_without_their_parent_are_deleted(objects: ObjectStore) -> None:
    def part(number: str, parent: str, created_at: int = 1) -> StoredObject:
        return StoredObject("piece", number, b"x", parent, created_at)

    objects.put("me", [StoredObject("file", "file-1", b""), StoredObject("note", "note-1", b"")])
    objects.put("me", [part("a", "file-1"), part("b", "file-2"), part("c", "file-3", 1000), part("d", "note-1")])
    # The file of another owner is no parent.
    objects.put("other", [part("e", "file-1")])
    assert ObjectScan(objects).delete_orphans("piece", {"file"}, 500) == 3
    kept = [(owner, each.id) for owner, each in ObjectScan(objects).all("piece")]
    assert kept == [("me", "a"), ("me", "c")]
