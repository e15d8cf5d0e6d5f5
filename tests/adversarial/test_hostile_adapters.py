"""Adapter files that are cut, changed or of other shapes: a refusal with a reason, whatever the bytes."""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quicksilver.errors import EngineUnavailable, QuicksilverError
from quicksilver.model.adapters import attach_canvas, load_adapter, save_adapter
from quicksilver.worker.client import RemoteEngine
from tests.support.canvas_adapters import new_canvas
from tests.support.tiny import TINY, tiny_model


@pytest.fixture
def adapter_path(tmp_path: Path) -> Path:
    path = tmp_path / "canvas.safetensors"
    save_adapter(path, new_canvas(TINY, rank=4, max_canvas_len=8, seed=1), {"base": "tiny"}, bits=8)
    return path


def load_and_attach(path: Path) -> None:
    adapter = load_adapter(path)
    attach_canvas(tiny_model(seed=9), adapter)  # type: ignore[arg-type]


def test_changed_bytes_are_refused_or_harmless(adapter_path: Path) -> None:
    raw, rng = adapter_path.read_bytes(), random.Random(4)
    header_end = 8 + struct.unpack("<Q", raw[:8])[0]
    num_refused = 0
    for _ in range(300):
        changed = bytearray(raw)
        for _ in range(rng.choice((1, 3))):
            changed[rng.randrange(header_end)] = rng.randrange(256)
        adapter_path.write_bytes(changed[: rng.choice((len(raw), len(raw), rng.randrange(len(raw))))])
        try:
            load_adapter(adapter_path)
        except QuicksilverError:
            num_refused += 1
    assert num_refused > 200


@pytest.mark.parametrize("change", ["shape", "name", "dtype", "missing", "nan"])
def test_tensors_that_do_not_belong_are_refused(adapter_path: Path, change: str) -> None:
    tensors = load_file(adapter_path)
    name = max(tensors, key=lambda key: tensors[key].numel())
    tensor = tensors.pop(name)
    replaced = {
        "shape": {name: torch.zeros(3, 3, dtype=tensor.dtype)},
        "name": {"__class__": tensor},
        "dtype": {name: tensor.to(torch.float64)},
        "missing": {},
        "nan": {name: torch.full(tensor.shape, float("nan"))},
    }[change]
    with adapter_path.open("rb") as file:
        metadata = json.loads(file.read(struct.unpack("<Q", file.read(8))[0])).get("__metadata__", {})
    save_file({**tensors, **replaced}, adapter_path, metadata=metadata)
    with pytest.raises(QuicksilverError):
        load_and_attach(adapter_path)


@pytest.mark.contract
async def test_a_worker_with_hostile_files_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "config.json").write_text("{}")
    config = json.dumps({"model": str(tmp_path)})
    client = RemoteEngine([sys.executable, "-m", "quicksilver.worker", "--config", config])
    with pytest.raises(EngineUnavailable, match="did not start"):
        await client.start()
    await client.close()
