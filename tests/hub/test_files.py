"""The files of a model, and adapter files that replace its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from quicksilver.errors import CheckpointRefused
from quicksilver.hub.files import ModelFiles


def adapter(path: Path, *names: str) -> Path:
    save_file({name: np.zeros(2, dtype=np.float32) for name in names}, path)
    return path


def test_an_adapter_file_replaces_the_one_of_its_kind(tmp_path: Path) -> None:
    files = ModelFiles("nano", Path("base"), Path("old-skill"), Path("old-canvas"))
    skill = adapter(tmp_path / "a.safetensors", "layers.0.qkv.A")
    canvas = adapter(tmp_path / "b.safetensors", "layers.0.qkv.A", "mask_embedding")
    assert files.with_adapters([]) == files
    assert files.with_adapters([skill]) == ModelFiles("nano", Path("base"), skill, Path("old-canvas"))
    assert files.with_adapters([canvas, skill]) == ModelFiles("nano", Path("base"), skill, canvas)


@pytest.mark.parametrize("raw", [b"", b"x" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\xff" * 32])
def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointRefused, match="not a safetensors file"):
        ModelFiles("nano", Path("base")).with_adapters([path])
    with pytest.raises(CheckpointRefused, match="No such file"):
        ModelFiles("nano", Path("base")).with_adapters([tmp_path / "none"])
