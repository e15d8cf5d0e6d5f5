"""Tiling of the layer-fused kernel, and the GPUs that support it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from quicksilver.backends.cuda.compile import source
from quicksilver.backends.cuda.kernels.layer_fused import KERNEL, adapter_fits_fp16
from quicksilver.backends.cuda.kernels.layer_fused_shape import (
    GpuProperties,
    KernelSpec,
    KSplit,
    find_k_split,
    fits,
    shared_bytes,
    with_stages,
)
from quicksilver.model.config import ModelConfig


@pytest.mark.parametrize(
    ("dims", "k_split"),
    [
        ((1536, 8960), KSplit(2, 8, {"o": 2, "gu": 2, "dn": 5, "qkv": 2})),
        ((4096, 12288), KSplit(2, 8, {"o": 2, "gu": 2, "dn": 6, "qkv": 2})),
        ((5120, 17408), None),
        ((576, 1536), KSplit(1, 6, {"o": 1, "gu": 1, "dn": 1, "qkv": 1})),
        ((2560, 9728), None),
        ((100, 256), None),
    ],
)
def test_k_splits_of_known_models(dims: tuple[int, int], k_split: KSplit | None) -> None:
    assert find_k_split(SimpleNamespace(dim=dims[0], q_dim=dims[0], ffn_dim=dims[1])) == k_split  # type: ignore[arg-type]


def coder_spec(rows: int, shared: int, capability: tuple[int, int] = (9, 0)) -> KernelSpec:
    config = ModelConfig("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, qkv_bias=True, tied_head=True)
    return KernelSpec(config, rows, 32, 16, True, 16, GpuProperties(132, shared, capability))


def test_the_ring_buffer_has_as_many_stages_as_shared_memory_allows() -> None:
    found = with_stages(coder_spec(16, 232_448))
    assert found is not None
    assert found.stages == 8
    assert shared_bytes(found) <= 232_448


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("rows", [16, 32])
def test_a_stage_holds_a_k_block_of_an_adapter_for_all_weight_formats(rows: int, bits: int) -> None:
    found = with_stages(replace(coder_spec(rows, 232_448), bits=bits))
    assert found is not None
    assert found.stage_blocks * found.block_bytes >= 1024 * found.k_split.cluster
    assert shared_bytes(found) <= 232_448


@pytest.mark.parametrize(("smallest", "is_room"), [(1e-3, True), (1e-9, False)])
def test_an_adapter_beyond_fp16_is_not_supported(smallest: float, is_room: bool) -> None:
    """B is divided by the scale of its output, which is tiny if an fp8 output is nearly zero."""
    weight = SimpleNamespace(scale=torch.tensor([1.0, smallest]))
    pair = SimpleNamespace(b=torch.full((2, 16), 0.25))
    layer = SimpleNamespace(o=weight, gate_up=weight, down=weight, qkv=weight, canvas={"o": pair})
    assert adapter_fits_fp16(layer) == is_room  # type: ignore[arg-type]


def test_gpus_without_enough_shared_memory_or_bulk_copies_are_not_supported() -> None:
    assert fits(coder_spec(32, 232_448))
    assert not fits(coder_spec(32, 101_376)), "half the shared memory"
    assert not fits(coder_spec(32, 232_448, (8, 9))), "no bulk copies"


def test_the_compiled_kernel_is_defined_in_the_source_file_of_its_name() -> None:
    assert f" {KERNEL}(const GRID_CONSTANT" in source(f"{KERNEL}.cu")
