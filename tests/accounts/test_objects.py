"""Stored objects: order, owners, leases, eviction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.migrations import upgrade
from quicksilver.accounts.objects import ObjectStore, open_local
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.store import Store


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def objects(empty_url: str, clock: Clock) -> Iterator[ObjectStore]:
    store = Store(empty_url)
    upgrade(store)
    yield ObjectStore(store, clock)
    store.close()


def ids(found: list[StoredObject] | None) -> list[str]:
    assert found is not None
    return [each.id for each in found]


def test_objects_are_listed_in_order_and_by_owner(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", str(i), b"body", "p") for i in range(5)])
    objects.put("b", [StoredObject("x", "0", b"other", "p")])
    assert ids(objects.find("a", "x", "p", limit=2)) == ["0", "1"]
    assert ids(objects.find("a", "x", "p", after="1")) == ["2", "3", "4"]
    assert ids(objects.find("a", "x", "p", after="3", limit=2, is_descending=True)) == ["2", "1"]
    assert objects.find("a", "x", "p", after="none") is None
    assert objects.find("a", "x") == []
    found = objects.get("b", "x", "0")
    assert found is not None
    assert (found.body, found.created_at) == (b"other", 1000)
    assert objects.get("c", "x", "0") is None
    assert (objects.count("a", "x", "p"), sorted(objects.ids("b", "x", "p"))) == (5, ["0"])


def test_a_page_is_bounded_in_bytes(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", str(i), b"1234", "p") for i in range(5)])

    def page(**options: int | str | bool) -> tuple[list[str], bool]:
        found = objects.page("a", "x", "p", **{"limit": 10, "max_bytes": 100, **options})  # type: ignore[arg-type]
        assert found is not None
        return ids(found[0]), found[1]

    assert page() == (["0", "1", "2", "3", "4"], False)
    assert page(limit=2) == (["0", "1"], True)
    assert page(max_bytes=8) == (["0", "1"], True)
    assert page(max_bytes=1, is_descending=True) == (["4"], True)
    assert page(max_bytes=8, after="2") == (["3", "4"], False)
    assert page(after="4") == ([], False)
    assert objects.page("a", "x", "p", after="none", limit=1, max_bytes=1) is None
    assert objects.extent("a", "x", "p") == (5, 20)
    assert objects.extent("a", "x", "none") == (0, 0)


def test_named_objects_are_of_one_owner_and_bounded_in_bytes(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", "1", b"12"), StoredObject("y", "2", b"34"), StoredObject("z", "3", b"56")])
    objects.put("b", [StoredObject("x", "4", b"78")])
    asked = ["1", "2", "3", "4", "5"]
    assert sorted(ids(objects.named("a", ("x", "y"), asked, max_bytes=4))) == ["1", "2"]
    assert objects.named("a", ("x", "y"), asked, max_bytes=3) is None
    assert objects.named("a", ("x", "y"), ["4"], max_bytes=3) == []


def test_a_replaced_object_keeps_its_place(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", "1", b"old"), StoredObject("x", "2", b"")])
    objects.put("a", [StoredObject("x", "1", b"newer")])
    assert ids(objects.find("a", "x")) == ["1", "2"]
    assert objects.num_bytes("a") == 5
    assert objects.add("a", StoredObject("x", "1", b"again")) is False
    assert objects.add("a", StoredObject("x", "3", b"")) is True


def test_deletion_takes_what_is_inside(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", "1", b""), StoredObject("y", "2", b"", "1"), StoredObject("y", "3", b"", "9")])
    assert objects.delete("b", "x", "1") is False
    assert objects.delete("a", "x", "1") is True
    assert objects.get("a", "y", "2") is None
    objects.delete_inside("a", "9")
    assert objects.num_bytes("a") == 0
    assert objects.get("a", "y", "3") is None


def test_deletion_of_an_id_of_another_kind_deletes_nothing(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", "1", b""), StoredObject("y", "2", b"inside", "1")])
    assert objects.delete("a", "z", "1") is False
    assert objects.get("a", "x", "1") is not None
    assert objects.get("a", "y", "2") is not None


def test_old_objects_and_then_the_oldest_make_room(objects: ObjectStore, clock: Clock) -> None:
    objects.put("a", [StoredObject("x", "old", b"1234")])
    clock.now = 2000.0
    objects.put("a", [StoredObject("x", str(i), b"1234") for i in range(3)])
    objects.put("a", [StoredObject("x", "open", b"1234", is_open=True), StoredObject("kept", "1", b"1234")])
    objects.trim("a", ["x"], 1000, before=1500.0)
    assert ids(objects.find("a", "x")) == ["0", "1", "2", "open"]
    assert objects.num_kept_bytes("a", ["x"]) == 8
    objects.put("a", [StoredObject("y", "ended", b"", created_at=1400)])
    objects.put("a", [StoredObject("y", "open", b"", created_at=1400, is_open=True), StoredObject("y", "new", b"")])
    objects.trim("a", ["x"], 1000, before=1500.0)
    assert ids(objects.find("a", "y")) == ["ended", "open", "new"]
    objects.trim("a", ["x"], 1000, before=1500.0, aged=["y"])
    assert ids(objects.find("a", "y")) == ["open", "new"]
    objects.trim("a", ["x"], 13, before=0.0)
    assert ids(objects.find("a", "x")) == ["2", "open"]
    assert objects.get("a", "kept", "1") is not None


def test_one_process_at_a_time_holds_a_lease(objects: ObjectStore, clock: Clock) -> None:
    objects.put("a", [StoredObject("x", "1", b"work", is_open=True), StoredObject("x", "2", b"done")])
    claimed = objects.claim("x", "first", 10)
    assert claimed is not None
    assert (claimed[0], claimed[1].id) == ("a", "1")
    assert objects.claim("x", "second", 10) is None
    assert objects.renew("a", "x", "1", "first", 10) is True
    assert objects.renew("a", "x", "1", "second", 10) is False
    clock.now += 20
    assert objects.claim("x", "second", 10) is not None
    assert objects.renew("a", "x", "1", "first", 10) is False
    assert objects.finish("a", StoredObject("x", "1", b"late"), "first") is False
    assert objects.finish("a", StoredObject("x", "1", b"result"), "second") is True
    found = objects.get("a", "x", "1")
    assert found is not None
    assert (found.body, found.is_open) == (b"result", False)
    assert objects.claim("x", "third", 10) is None


def test_a_finished_object_is_emptied_with_its_end(objects: ObjectStore) -> None:
    inside = StoredObject("y", "2", b"", "1")
    objects.put("a", [StoredObject("x", "1", b"", is_open=True, leased_by="me"), inside])
    assert objects.finish("a", StoredObject("x", "1", b"late"), "other", is_emptied=True) is False
    assert objects.get("a", "y", "2") is not None
    assert objects.finish("a", StoredObject("x", "1", b"end"), "me", is_emptied=True) is True
    assert objects.get("a", "y", "2") is None


def test_claims_pass_over_owners(objects: ObjectStore) -> None:
    objects.put("a", [StoredObject("x", "1", b"", is_open=True)])
    objects.put("b", [StoredObject("x", "2", b"", is_open=True)])
    assert objects.claim("x", "me", 10, ["a", "b"]) is None
    claimed = objects.claim("x", "me", 10, ["a"])
    assert claimed is not None
    assert claimed[0] == "b"


def test_a_local_store_is_opened_twice(tmp_path: Path) -> None:
    first = open_local(tmp_path / "home" / "objects.db")
    first.put("", [StoredObject("x", "1", b"body")])
    second = open_local(tmp_path / "home" / "objects.db")
    assert second.get("", "x", "1") is not None
    assert (tmp_path / "home" / "objects.db").stat().st_mode & 0o077 == 0
    first.close()
    second.close()
