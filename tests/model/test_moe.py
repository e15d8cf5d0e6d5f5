"""Routers choose the right experts, and a row's result does not depend on the rows beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quicksilver.model.experts import MoeConfig
from quicksilver.model.moe import SparseFeedForward, route, set_expert_kernel
from tests.model.build import small_config

SOFTMAX = MoeConfig(num_experts=4, top_k=2, ffn_dim=8)
GROUPED = MoeConfig(
    num_experts=6, top_k=2, ffn_dim=8, router="sigmoid", has_bias=True, num_groups=3, top_groups=1, scale=2.0
)


def test_softmax_weights_of_the_best_experts_sum_to_one() -> None:
    chosen, weights = route(torch.tensor([[0.0, 2.0, 1.0, -1.0]]), None, SOFTMAX)
    assert chosen.tolist() == [[1, 2]]
    torch.testing.assert_close(weights, torch.tensor([[2.0, 1.0]]).softmax(-1))


def test_ties_go_to_the_lower_index() -> None:
    assert route(torch.zeros(3, 4), None, SOFTMAX)[0].tolist() == [[0, 1]] * 3


def test_the_best_group_is_chosen_by_its_two_best_and_the_bias_only_chooses() -> None:
    logits = torch.tensor([[3.0, -9.0, 1.0, 1.0, 0.0, 0.0]])
    chosen, weights = route(logits, torch.zeros(6), GROUPED)
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 1.0]]))
    biased, weights = route(logits, torch.tensor([0.0, 0.0, 0.0, 0.0, 5.0, 4.0]), GROUPED)
    assert biased.tolist() == [[4, 5]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 1.0]]))


@torch.inference_mode()
def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    torch.manual_seed(0)
    config = small_config("llada2")
    assert config.moe is not None
    layer = SparseFeedForward(config, config.moe)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(37, config.dim)
    together = layer(x)
    for start, end in ((0, 1), (5, 9), (20, 37)):
        assert torch.equal(layer(x[start:end]), together[start:end])


@pytest.mark.parametrize(
    ("dim", "moe"),
    [
        (2048, MoeConfig(num_experts=4, top_k=2, ffn_dim=512, router="sigmoid", has_bias=True, shared_ffn_dim=512)),
        (2048, MoeConfig(num_experts=4, top_k=3, ffn_dim=768)),
        (2816, MoeConfig(num_experts=4, top_k=2, ffn_dim=704, activation="gelu_tanh")),
    ],
    ids=["llada2", "sdar", "gemma"],
)
@torch.inference_mode()
def test_the_bits_of_a_row_do_not_depend_on_other_rows_at_real_widths(dim: int, moe: MoeConfig) -> None:
    """Experts get from one to many rows; products of a few rows and of many must add in the same order."""
    torch.manual_seed(0)
    layer = SparseFeedForward(replace(small_config(), dim=dim), moe)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.03)
    x = torch.randn(65, dim)
    together = layer(x)
    for start, end in ((0, 1), (3, 5), (5, 9), (20, 57)):
        assert torch.equal(layer(x[start:end]), together[start:end])
    order = torch.randperm(65)
    assert torch.equal(layer(x[order]), together[order])


@torch.inference_mode()
def test_experts_are_added_in_fp32() -> None:
    """One rounding to bf16, after the sum, whatever the number of experts."""
    torch.manual_seed(0)
    moe = MoeConfig(num_experts=8, top_k=8, ffn_dim=32, shared_ffn_dim=32)
    layer = SparseFeedForward(small_config(), moe).bfloat16()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(5, small_config().dim).bfloat16()
    chosen, weights = layer.choose(x.float())
    total = layer._expert(x, layer.shared_gate_up.weight, layer.shared_down.weight).double()
    for row in range(len(x)):
        for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            part = layer._expert(x[row : row + 1], layer.gate_up[expert], layer.down[expert])[0]
            total[row] += part.double() * weight
    found = layer(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), total, rtol=2**-8, atol=1e-6)


def test_a_kernel_computes_the_routed_experts_and_torch_the_shared_one() -> None:
    config = small_config("llama")
    layer = SparseFeedForward(config, MoeConfig(4, 2, 16, shared_ffn_dim=16))
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.2)
    x = torch.randn(3, config.dim)
    wanted = layer(x)
    seen = []

    def kernel(x: Tensor, chosen: Tensor, *rest: Any) -> Tensor:
        seen.append(chosen.shape)
        return layer._one_by_one(x, chosen, *rest)

    set_expert_kernel(layer, kernel)
    assert torch.equal(layer(x), wanted)
    assert seen == [(3, 2)]
