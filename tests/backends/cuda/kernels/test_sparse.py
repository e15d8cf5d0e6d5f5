"""Layers with routed experts in the network of the kernels."""

from __future__ import annotations

import pytest

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels.sparse import sparse_refusal
from quicksilver.model.experts import MoeConfig
from tests.support import sparse_checks as checks
from tests.support.graph_checks import check_batch_invariant_matmul, check_network

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CONFIGS = [checks.sparse(checks.SMALL, moe) for moe in (checks.SOFTMAX, checks.GROUPED)]


@pytest.mark.parametrize("config", CONFIGS, ids=["softmax", "grouped"])
@pytest.mark.parametrize(("seed", "kinds"), [(0, ("one", "canvas")), (1, ("one", "canvas", "chunk"))])
def test_a_network_with_experts_equals_the_eager_network(config, seed: int, kinds: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    check_network(config, seed, False, kinds, has_adapter=False)


@pytest.mark.parametrize("config", CONFIGS, ids=["softmax", "grouped"])
def test_batch_invariant_matmul_covers_experts(config) -> None:  # type: ignore[no-untyped-def]
    check_batch_invariant_matmul(config, (14,), has_adapter=False)


@pytest.mark.parametrize("count", [2, 14])
def test_fp8_experts_are_close_to_the_exact_ones(count: int) -> None:
    checks.check_sparse_fp8(CONFIGS[1], count)


def test_a_shared_expert_of_another_width_is_refused() -> None:
    assert sparse_refusal(MoeConfig(6, 2, 32, shared_ffn_dim=32)) is None
    reason = sparse_refusal(MoeConfig(6, 2, 32, shared_ffn_dim=64))
    assert reason == "a shared expert of width 64 beside experts of width 32"
    assert sparse_refusal(MoeConfig(6, 2, 24)) == "experts of width 24, which is not a multiple of 16"
