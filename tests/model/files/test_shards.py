"""Files of a safetensors directory: the index decides, and no path leaves the directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.shards import open_tensors, read_json, shard_paths


def write_index(folder: Path, names: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_the_index_names_the_shards(tmp_path: Path) -> None:
    for name in ("a", "b", "other"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    assert [path.stem for path in shard_paths(tmp_path)] == ["a", "b", "other"]
    write_index(tmp_path, {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"})
    assert [path.stem for path in shard_paths(tmp_path)] == ["a", "b"]
    with open_tensors(tmp_path / "a.safetensors") as file:
        assert list(file.keys()) == ["a"]


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/a.safetensors", "missing.safetensors", "a.bin"])
def test_an_index_that_names_other_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    write_index(tmp_path, {"x": name})
    with pytest.raises(CheckpointRefused):
        shard_paths(tmp_path)


@pytest.mark.parametrize("names", [None, ["a.safetensors"], {"x": 3}])
def test_an_index_of_another_shape_is_refused(tmp_path: Path, names: object) -> None:
    write_index(tmp_path, names)
    with pytest.raises(CheckpointRefused, match="weight_map"):
        shard_paths(tmp_path)


@pytest.mark.parametrize(("content", "reason"), [(b"[1]", "not a JSON object"), (b"{", "not valid JSON")])
def test_json_that_is_not_an_object_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointRefused, match=reason):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointRefused, match="missing"):
        read_json(tmp_path / "other.json")
