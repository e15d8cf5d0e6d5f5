"""Adapter files: three bit widths, and damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.adapters import Adapter, CanvasAdapter, load_adapter, save_adapter
from tests.model.build import SMALL
from tests.support.canvas_adapters import new_canvas
from tests.support.shared_data import shared


def random_adapter(rank: int = 32) -> CanvasAdapter:
    torch.manual_seed(2)
    adapter = new_canvas(SMALL, rank=rank, max_canvas_len=8, seed=2)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return adapter


@pytest.mark.parametrize(("bits", "error"), [(16, 1e-3), (8, 0.012), (4, 0.15)])
def test_an_adapter_survives_the_round_trip(tmp_path: Path, bits: int, error: float) -> None:
    adapter, path = random_adapter(), tmp_path / "canvas.safetensors"
    adapter.replace_embeddings(torch.tensor([3, 4]), torch.randn(2, SMALL.dim))
    save_adapter(path, adapter, {"base": "small"}, bits=bits)
    found = load_adapter(path)
    assert isinstance(found, CanvasAdapter)
    assert found.metadata == {"base": "small", "bits": str(bits)}
    assert found.max_canvas_len == 8
    for (_, _, left), (_, _, right) in zip(adapter.low_rank(), found.low_rank(), strict=True):
        for a, b in ((left.A, right.A), (left.B, right.B)):
            assert (a - b).norm() < error * a.norm()
    assert adapter.embedding_rows is not None
    assert found.embedding_rows is not None
    assert torch.equal(found.embedding_rows, adapter.embedding_rows)
    again = tmp_path / "again.safetensors"
    save_adapter(again, found, {"base": "small"}, bits=bits)
    for (_, _, left), (_, _, right) in zip(found.low_rank(), load_adapter(again).low_rank(), strict=True):
        torch.testing.assert_close(left.A, right.A, rtol=2e-3, atol=1e-6)


def test_a_skill_has_no_masks(tmp_path: Path) -> None:
    skill = Adapter([])
    skill.layers = random_adapter().layers
    save_adapter(tmp_path / "skill.safetensors", skill, {}, bits=8)
    assert not isinstance(load_adapter(tmp_path / "skill.safetensors"), CanvasAdapter)


@pytest.mark.parametrize("bits", [16, 8])
def test_pairs_for_canvas_rows_survive_the_round_trip(tmp_path: Path, bits: int) -> None:
    skill, on_canvas = (Adapter([dict(layer.items()) for layer in random_adapter(r).layers]) for r in (4, 6))  # type: ignore[operator]
    save_adapter(tmp_path / "plain.safetensors", skill, {}, bits=bits)
    skill.canvas = on_canvas
    save_adapter(tmp_path / "both.safetensors", skill, {}, bits=bits)
    plain, both = (load_adapter(tmp_path / f"{name}.safetensors") for name in ("plain", "both"))
    assert plain.canvas is None
    assert both.canvas is not None
    for (_, _, left), (_, _, right) in zip(plain.low_rank(), both.low_rank(), strict=True):
        assert torch.equal(left.A, right.A)
    for (_, _, left), (_, _, right) in zip(on_canvas.low_rank(), both.canvas.low_rank(), strict=True):
        assert (left.B - right.B).norm() < 0.012 * left.B.norm()
    tensors = load_file(tmp_path / "both.safetensors")
    del tensors["canvas.layers.0.o.B" if bits == 16 else "canvas.layers.0.o.B.q"]
    save_file(tensors, tmp_path / "cut.safetensors")
    with pytest.raises(CheckpointRefused, match=r"canvas\.layer 0 o: A or B is missing"):
        load_adapter(tmp_path / "cut.safetensors")


def test_int8_scales_belong_to_ranks(tmp_path: Path) -> None:
    save_adapter(tmp_path / "a.safetensors", random_adapter(rank=6), {}, bits=8)
    stored = load_file(tmp_path / "a.safetensors")
    assert stored["layers.0.qkv.A.q"].shape == (6, 64)
    assert stored["layers.0.qkv.B.q"].shape == (128, 6)
    assert stored["layers.0.qkv.A.scale"].shape == stored["layers.0.qkv.B.scale"].shape == (6,)
    assert {stored["layers.0.qkv.A.q"].dtype, stored["layers.0.qkv.B.q"].dtype} == {torch.int8}
    assert stored["mask_embedding"].dtype == torch.float16


def test_widths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="bits"):
        save_adapter(tmp_path / "a.safetensors", random_adapter(), {}, bits=3)
    with pytest.raises(InvalidRequest, match="multiples of 32"):
        save_adapter(tmp_path / "a.safetensors", random_adapter(rank=6), {}, bits=4)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("layers.0.qkv.A.q", None, "A or B is missing"),
        ("layers.1.dn.B.scale", None, "without matching scales"),
        ("layers.0.o.A.q", torch.zeros(3, 64, dtype=torch.int8), "scales"),
        ("layers.0.o.A.q", torch.zeros(64, dtype=torch.int8), "matrix"),
        ("layers.0.q.A.q", torch.zeros(8, 64, dtype=torch.int8), "not part"),
        ("mask_embedding", torch.zeros(8), "not a matrix"),
        ("embedding.ids", torch.zeros(2, dtype=torch.int64), "do not match"),
    ],
)
def test_a_damaged_adapter_is_refused_with_the_reason(
    tmp_path: Path, key: str, value: torch.Tensor | None, reason: str
) -> None:
    path = tmp_path / "a.safetensors"
    save_adapter(path, random_adapter(), {}, bits=8)
    tensors = load_file(path)
    tensors.pop(key, None)
    save_file(tensors if value is None else tensors | {key: value}, path)
    with pytest.raises(CheckpointRefused, match=reason):
        load_adapter(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match="no such adapter"):
        load_adapter(tmp_path / "none.safetensors")


def test_the_published_coder_canvas_loads() -> None:
    adapter = load_adapter(shared("adapters", "coder-1.5b-canvas-r64.safetensors"))
    assert isinstance(adapter, CanvasAdapter)
    assert adapter.mask_embedding.shape == (32, 1536)
    shapes = {name: (pair.B.shape[0], pair.A.shape[1]) for _, name, pair in adapter.low_rank()}
    assert shapes == {"qkv": (2048, 1536), "o": (1536, 1536), "gu": (17920, 1536), "dn": (1536, 8960)}
    assert len(adapter.layers) == 28
