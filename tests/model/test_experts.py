"""Shapes of mixture-of-experts layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quicksilver.errors import CheckpointRefused
from quicksilver.model.experts import MoeConfig
from tests.support.saved_model import experts

PLAIN = MoeConfig(num_experts=8, top_k=2, ffn_dim=16)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 0},
        {"top_k": 0},
        {"top_k": 9},
        {"num_groups": 3},
        {"num_groups": 8},
        {"num_groups": 4, "top_groups": 5},
        {"num_groups": 4, "top_groups": 1, "top_k": 3},
        {"num_experts": 4097},
        {"ffn_dim": (1 << 24) + 1},
        {"num_dense": -1},
        {"shared_ffn_dim": -1},
    ],
)
def test_experts_that_cannot_be_built_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointRefused, match="experts"):
        replace(PLAIN, **changes)


@pytest.mark.parametrize("changes", [{"num_groups": 4, "top_groups": 2, "top_k": 4}, {"top_k": 8}, {"num_dense": 1}])
def test_experts_at_their_bounds_are_built(changes: dict[str, Any]) -> None:
    assert replace(PLAIN, **changes)


def test_parameters_of_a_layer_are_counted() -> None:
    assert PLAIN.num_params(dim=4) == 3 * 4 * 8 * 16 + 8 * 4
    shared = replace(PLAIN, shared_ffn_dim=32, has_bias=True)
    assert shared.num_params(dim=4) == 3 * 4 * (8 * 16 + 32) + 8 * 5


def test_the_number_of_shared_experts_is_exported() -> None:
    exported = experts(replace(PLAIN, shared_ffn_dim=32, num_groups=2, top_groups=1, scale=2.5))
    assert exported["num_shared_experts"] == 2
    assert (exported["n_group"], exported["topk_group"], exported["routed_scaling_factor"]) == (2, 1, 2.5)
