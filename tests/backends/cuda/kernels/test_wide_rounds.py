"""Rounds of many sequences with quantised weights, experts, slots, adapters and blocks equal the eager network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton.runtime import interpreter

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat
from quicksilver.backends.cuda.kernels.round_linears import can_run_round_linears
from quicksilver.backends.cuda.kernels.weights import collect
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support import sparse_checks
from tests.support import wide_round_checks as checks
from tests.support.fp8_checks import TINIEST_FP8
from tests.support.graph_checks import TINIEST, TINIEST_PLAIN, causal_batch, model_of
from tests.support.kernel_checks import here
from tests.support.triton_interpreter import with_exact_fp8

# The interpreter evaluates both branches of `where` in numpy, which warns about the unused one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
# Widths of `round_linears.py`.
ROUND = replace(TINIEST, dim=64, ffn_dim=96, num_heads=4, num_kv_heads=2)
EXPERTS, DENSE_FIRST = (
    sparse_checks.sparse(sparse_checks.SMALL, moe) for moe in (sparse_checks.SOFTMAX, sparse_checks.GROUPED)
)


@pytest.fixture
def _exact_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", with_exact_fp8(interpreter._convert_float))


@pytest.mark.usefixtures("_exact_fp8")
@pytest.mark.parametrize(
    ("scheme", "config", "count"),
    [("int4", TINIEST, 64), ("int4", TINIEST, 128), ("fp8", TINIEST_PLAIN, 64), ("fp8", TINIEST, 128),
     ("fp8", TINIEST_FP8, 64)],
    ids=["int4", "int4 by cuBLAS", "fp8", "fp8 by cuBLAS", "fp8 inputs"],
)  # fmt: skip
def test_a_round_on_quantised_weights(scheme: str, config: ModelConfig, count: int) -> None:
    checks.check_quantised_round(scheme, config, count, 5)


@pytest.mark.parametrize(
    ("config", "count"),
    [(replace(DENSE_FIRST, dim=64, ffn_dim=96), 64), (EXPERTS, 128)],
    ids=["dense layer first", "by cuBLAS"],
)
def test_a_round_with_experts(config: ModelConfig, count: int) -> None:
    checks.check_round_of_many(config, count, 5, has_adapter=False)


@pytest.mark.parametrize(
    ("config", "count", "has_adapters"),
    [(ROUND, 64, False), (TINIEST, 64, True), (TINIEST, 128, True), (TINIEST, 256, True)],
)
def test_a_round_of_slots(config: ModelConfig, count: int, has_adapters: bool) -> None:
    checks.check_slot_round(config, count, 5, has_adapters)


@pytest.mark.parametrize("block_len", [2, 4, 8])
def test_a_round_of_blocks(block_len: int) -> None:
    checks.check_block_round(ROUND, 16, block_len)


@pytest.mark.usefixtures("_exact_fp8")
@pytest.mark.parametrize("activations", ActivationFormat, ids=lambda one: one.name)
def test_attention_stores_the_format_of_quantised_linears(activations: ActivationFormat) -> None:
    checks.check_input_formats(activations)


def test_slots_behind_the_range_of_int32() -> None:
    checks.check_far_slots()


@pytest.mark.parametrize(
    ("changes", "num_rows", "fits"),
    [({}, 64, True), ({}, 128, True), ({}, 256, False), ({"dim": 96}, 64, False), ({"ffn_dim": 80}, 64, False),
     ({"num_kv_heads": 1, "num_heads": 1}, 64, False), ({"tied_head": False}, 64, True)],
)  # fmt: skip
def test_widths_of_round_linears(changes: dict[str, int], num_rows: int, fits: bool) -> None:
    weights = collect(Transformer(replace(ROUND, **changes)))  # type: ignore[arg-type]
    assert can_run_round_linears(weights, num_rows) == fits


def test_large_networks_use_other_linears(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = collect(Transformer(ROUND))
    monkeypatch.setattr("quicksilver.backends.cuda.kernels.round_linears.MAX_BYTES", weights.num_bytes)
    assert can_run_round_linears(weights, 64)
    monkeypatch.setattr("quicksilver.backends.cuda.kernels.round_linears.MAX_BYTES", weights.num_bytes - 1)
    assert not can_run_round_linears(weights, 64)


@pytest.mark.parametrize("config", [EXPERTS, DENSE_FIRST], ids=["experts", "dense layer first"])
def test_experts_have_no_round_linears(config: ModelConfig) -> None:
    weights = collect(model_of(replace(config, dim=64, ffn_dim=96), has_adapter=False))
    assert not can_run_round_linears(weights, 64)


@pytest.mark.parametrize("scheme", ["fp8", "int4"])
def test_quantised_weights_have_no_round_linears(scheme: str) -> None:
    assert not can_run_round_linears(collect(Transformer(ROUND), scheme), 64)


def test_round_linears_refuse_canvas_rows() -> None:
    place = here()
    cache = PagedCache.allocate(ROUND, 64, 16, place.device, place.dtype)
    executor = GraphExecutor(model_of(ROUND), cache, 64, GraphLimits(64, 64, 64))
    workspace = executor.network.workspace(64, sequences=Sequences(64, 1))
    buffers = executor.row_buffers(64)[0]
    buffers.fill(causal_batch(64, 1, 5, 16), 1)
    assert workspace.is_round
    with pytest.raises(AssertionError):
        executor.network.run(buffers.inputs, workspace, is_gated=True)
    assert not bool(torch.any(workspace.x))
