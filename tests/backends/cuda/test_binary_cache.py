"""Compiled kernels on disk: compiled once per key, and again if a file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.backends.cuda.binary_cache import cached_binary, key_of


class Compiler:
    def __init__(self, binary: bytes = b"binary") -> None:
        self.num_calls = 0
        self.binary = binary

    def __call__(self) -> bytes:
        self.num_calls += 1
        return self.binary


def test_a_binary_is_compiled_once(tmp_path: Path) -> None:
    compile_ = Compiler()
    folder = tmp_path / "new" / "cuda"
    assert [cached_binary(folder, "k", compile_) for _ in range(3)] == [b"binary"] * 3
    assert compile_.num_calls == 1
    assert [path.name for path in folder.iterdir()] == ["k.cubin"], "a partial file is left"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:32], lambda data: b"", lambda data: data[:-1] + b"?"]
)
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: object) -> None:
    compile_ = Compiler()
    cached_binary(tmp_path, "k", compile_)
    path = tmp_path / "k.cubin"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert [cached_binary(tmp_path, "k", compile_) for _ in range(2)] == [b"binary"] * 2
    assert compile_.num_calls == 2


def test_a_folder_that_cannot_be_written_costs_a_compilation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    compile_ = Compiler()
    assert [cached_binary(tmp_path / "file" / "cuda", "k", compile_) for _ in range(2)] == [b"binary"] * 2
    assert compile_.num_calls == 2


def test_a_failed_compilation_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached_binary(tmp_path, "k", fail)
    assert not list(tmp_path.iterdir())


def test_keys_depend_on_every_text_and_on_its_borders() -> None:
    keys = {key_of(parts) for parts in (["a", "b"], ["ab"], ["a", "c"], ["b", "a"], ["a", "b", ""])}
    assert len(keys) == 5
    assert key_of(["a", "b"]) == key_of(iter(["a", "b"]))
