"""Adapter files: hashes, names, and the store under content hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.hub import adapter_files
from quicksilver.hub.adapter_files import check_adapter_name, find_adapter, store_adapter

PEFT = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


def test_the_id_depends_on_the_bytes_and_not_on_the_place(tmp_path: Path) -> None:
    for name, data in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(data)
    first, second, third = (find_adapter(tmp_path / name) for name in "abc")
    assert first.id == second.id != third.id
    assert first.path != second.path


@pytest.mark.parametrize("changed", PEFT)
def test_both_files_of_a_folder_are_part_of_its_id(tmp_path: Path, changed: str) -> None:
    first = store_adapter(PEFT, tmp_path)
    second = store_adapter({**PEFT, changed: PEFT[changed] + b" "}, tmp_path)
    assert first.id != second.id
    assert find_adapter(first.path) == first
    assert find_adapter(second.path) == second


def test_equal_files_are_stored_once(tmp_path: Path) -> None:
    first, second = (store_adapter({"adapter.safetensors": b"weights"}, tmp_path) for _ in range(2))
    assert first == second == find_adapter(first.path)
    assert len(list((tmp_path / "adapters").iterdir())) == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"adapter_config.json": b"{}"},
        {**PEFT, "../../home/.bashrc": b""},
        {"/etc/passwd": b""},
        {"../adapter.safetensors": b""},
        {"adapter_model.bin": b"", "adapter_config.json": b"{}"},
    ],
)
def test_other_files_are_refused_and_nothing_is_written(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(CheckpointRefused, match=r"an adapter is adapter_config\.json"):
        store_adapter(files, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_and_oversized_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointRefused, match="missing"):
        find_adapter(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointRefused, match=r"adapter_config\.json is missing"):
        find_adapter(tmp_path)
    (tmp_path / "large").write_bytes(b"12345")
    monkeypatch.setattr(adapter_files, "MAX_ADAPTER_BYTES", 4)
    with pytest.raises(CheckpointRefused, match="5 bytes are more than 4"):
        find_adapter(tmp_path / "large")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a:b", "a b", "-a", "a\n", "é", "a" * 65, "a..b"])
def test_names_that_are_not_plain_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="adapter name"):
        check_adapter_name(name)


@pytest.mark.parametrize("name", ["sql", "a", "v1.2-final_3", "A" * 64])
def test_plain_names_are_accepted(name: str) -> None:
    assert check_adapter_name(name) == name
