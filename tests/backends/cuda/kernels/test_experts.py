"""Routed experts in three launches equal the experts one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels import experts
from quicksilver.backends.cuda.kernels.experts import make_tiles, run_experts
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
    layer, x = layer_of(MoeConfig(3, 2, 24)), here().normal(50, CONFIG.dim)
    chosen, weights = layer.choose(x.float())

    def run() -> Tensor:
        return run_experts(x, chosen, weights, layer.gate_up, layer.down)

    assert make_tiles(chosen, 3).height == experts.HIGH_TILE
    high = run()
    monkeypatch.setattr(experts, "HIGH_TILE_PAIRS", 1000)
    assert make_tiles(chosen, 3).height == experts.LOW_TILE
    expect_close(run(), high, here().tolerance)


def test_a_row_does_not_depend_on_the_others() -> None:
    layer, x = layer_of(MoeConfig(6, 2, 40)), here().normal(9, CONFIG.dim)
    set_expert_kernel(layer, run_experts)
    together = layer(x)
    for row in (0, 4, 8):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


def test_tiles_hold_pairs_of_one_expert() -> None:
    chosen = torch.tensor([[2, 0], [2, 1], [2, 0]])
    tiles = make_tiles(chosen, 4)
    assert tiles.order.tolist() == [1, 5, 3, 0, 2, 4]
    assert tiles.tile_end.tolist() == [1, 2, 3, 3]
    assert tiles.pair_end.tolist() == [2, 3, 6, 6]
    assert tiles.max_tiles == 4
