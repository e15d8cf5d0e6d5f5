"""How the launch between two attentions is cut, and which chips can run it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from quicksilver.backends.cuda import compile as compile_module
from quicksilver.backends.cuda.compile import CudaError, compile_binary, source
from quicksilver.backends.cuda.kernels.layer_fused import KERNEL, has_room
from quicksilver.backends.cuda.kernels.layer_fused_shape import Chip, Cut, Kind, cut_for, fits, shared_bytes, with_slots
from quicksilver.model.config import ModelConfig


@pytest.mark.parametrize(
    ("dims", "cut"),
    [
        ((1536, 8960), Cut(2, 8, {"o": 2, "gu": 2, "dn": 5, "qkv": 2})),
        ((4096, 12288), Cut(2, 8, {"o": 2, "gu": 2, "dn": 6, "qkv": 2})),
        ((5120, 17408), None),
        ((576, 1536), Cut(1, 6, {"o": 1, "gu": 1, "dn": 1, "qkv": 1})),
        ((2560, 9728), None),
        ((100, 256), None),
    ],
)
def test_how_known_models_are_cut(dims: tuple[int, int], cut: Cut | None) -> None:
    assert cut_for(SimpleNamespace(dim=dims[0], q_dim=dims[0], ffn_dim=dims[1])) == cut  # type: ignore[arg-type]


def coder_kind(rows: int, shared: int, capability: tuple[int, int] = (9, 0)) -> Kind:
    config = ModelConfig("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, qkv_bias=True, tied_head=True)
    return Kind(config, rows, 32, 16, True, 16, Chip(132, shared, capability))


def test_the_ring_is_as_long_as_shared_memory_allows() -> None:
    found = with_slots(coder_kind(16, 232_448))
    assert found is not None
    assert found.slots == 8
    assert shared_bytes(found) <= 232_448


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("rows", [16, 32])
def test_a_slot_holds_a_block_of_an_adapter_beside_any_weights(rows: int, bits: int) -> None:
    found = with_slots(replace(coder_kind(rows, 232_448), bits=bits))
    assert found is not None
    assert found.piece * found.block_bytes >= 1024 * found.cut.team
    assert shared_bytes(found) <= 232_448


@pytest.mark.parametrize(("smallest", "is_room"), [(1e-3, True), (1e-9, False)])
def test_an_adapter_that_fp16_does_not_hold_is_left_to_other_kernels(smallest: float, is_room: bool) -> None:
    """B is divided by the scale of its output, and beside an output of fp8 that is all zero that is tiny."""
    weight = SimpleNamespace(scale=torch.tensor([1.0, smallest]))
    pair = SimpleNamespace(b=torch.full((2, 16), 0.25))
    layer = SimpleNamespace(o=weight, gate_up=weight, down=weight, qkv=weight, canvas={"o": pair})
    assert has_room(layer) == is_room  # type: ignore[arg-type]


def test_chips_that_cannot_are_left_to_other_kernels() -> None:
    assert fits(coder_kind(32, 232_448))
    assert not fits(coder_kind(32, 101_376)), "half the shared memory"
    assert not fits(coder_kind(32, 232_448, (8, 9))), "no bulk copies"


def test_without_a_compiler_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: None)
    with pytest.raises(CudaError, match="libnvrtc is missing"):
        compile_binary("layer_fused", {}, (9, 0))


def test_the_compiled_kernel_is_defined_in_the_source_file_of_its_name() -> None:
    assert f" {KERNEL}(const GRID_CONSTANT" in source(f"{KERNEL}.cu")
