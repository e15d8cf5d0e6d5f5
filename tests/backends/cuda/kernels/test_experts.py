"""Routed experts on kernels equal the experts one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels import experts
from quicksilver.backends.cuda.kernels.experts import quantise_experts, run_experts, tile_height
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from quicksilver.model.moe import SparseFeedForward, set_expert_kernel
from tests.support.kernel_checks import expect_close, here

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CONFIG = ModelConfig("llama", 1, 48, 64, 2, 1, 32, 70, 64)


def layer_of(moe: MoeConfig) -> SparseFeedForward:
    torch.manual_seed(moe.num_experts)
    layer = SparseFeedForward(CONFIG, moe)
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.3)
    return layer.to(here().device, here().dtype).requires_grad_(False)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("num_rows", [1, 5, 37])
def test_the_kernels_equal_the_experts_one_by_one(num_rows: int, activation: str) -> None:
    moe = MoeConfig(6, 2, 40, router="sigmoid", has_bias=True, shared_ffn_dim=32, activation=activation)  # type: ignore[arg-type]
    layer, x = layer_of(moe), here().normal(num_rows, CONFIG.dim)
    wanted = layer(x)
    set_expert_kernel(layer, run_experts)
    expect_close(layer(x), wanted, here().tolerance)


def test_all_rows_may_choose_the_same_experts() -> None:
    layer, x = layer_of(MoeConfig(5, 2, 24)), here().normal(40, CONFIG.dim)
    chosen = torch.tensor([[3, 1]], device=x.device).repeat(40, 1)
    weights = torch.rand(40, 2, device=x.device)
    wanted = layer.combine(x, chosen, weights)
    set_expert_kernel(layer, run_experts)
    expect_close(layer.combine(x, chosen, weights), wanted, here().tolerance)


def test_high_tiles_equal_low_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(MoeConfig(3, 2, 24)), here().normal(80, CONFIG.dim)
    chosen, weights = layer.choose(x.float())

    def run() -> Tensor:
        return run_experts(x, chosen, weights, layer.gate_up, layer.down)

    assert tile_height(80, 2, 3) == experts.HIGH_TILE
    high = run()
    monkeypatch.setattr(experts, "HIGH_TILE_PAIRS", 1000)
    assert tile_height(80, 2, 3) == experts.LOW_TILE
    expect_close(run(), high, here().tolerance)


def test_few_rows_always_have_low_tiles() -> None:
    """A row has the same bits in every batch of up to 64 rows."""
    assert {tile_height(rows, 2, 3) for rows in (1, 16, 64)} == {experts.LOW_TILE}


def test_fp8_experts_are_close_to_the_exact_ones() -> None:
    layer, x = layer_of(MoeConfig(6, 2, 40)), here().normal(20, CONFIG.dim)
    chosen, weights = layer.choose(x.float())
    few = quantise_experts(layer.gate_up, layer.down)
    assert few.gate_up_scale is not None
    assert few.down_scale is not None
    exact = [
        (w.float() * scale[..., None]).to(x.dtype)
        for w, scale in ((few.gate_up, few.gate_up_scale), (few.down, few.down_scale))
    ]
    scales = (few.gate_up_scale, few.down_scale)
    found = run_experts(x, chosen, weights, few.gate_up, few.down, scales=scales)
    expect_close(found, run_experts(x, chosen, weights, *exact), max(here().tolerance, 2e-3))
    expect_close(found, run_experts(x, chosen, weights, layer.gate_up, layer.down), 8e-2)


def test_rows_without_experts_are_zero() -> None:
    layer, x = layer_of(MoeConfig(5, 2, 24)), here().normal(4, CONFIG.dim)
    chosen = torch.tensor([[3, 1], [-1, -1], [0, -1], [2, 4]], device=x.device)
    weights = torch.rand(4, 2, device=x.device)
    found = run_experts(x, chosen, weights, layer.gate_up, layer.down)
    assert not bool(found[1].any())
    alone = run_experts(x[2:3], chosen[2:3, :1], weights[2:3, :1], layer.gate_up, layer.down)
    assert torch.equal(found[2:3], alone)


def test_a_row_does_not_depend_on_the_others() -> None:
    layer, x = layer_of(MoeConfig(6, 2, 40)), here().normal(9, CONFIG.dim)
    set_expert_kernel(layer, run_experts)
    together = layer(x)
    for row in (0, 4, 8):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])
