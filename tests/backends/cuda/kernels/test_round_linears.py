"""Linears of rounds equal plain torch, alone and in a network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.cuda.kernels.round_linears import num_splits
from tests.support import linear_checks, wide_round_checks
from tests.support.graph_checks import TINIEST, TINIEST_PLAIN
from tests.support.linear_checks import LayerShape

# The interpreter evaluates both branches of `where` in numpy, which warns about the unused one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
SHAPE = LayerShape((192, 160), (4, 2, 32))
BIASED = replace(TINIEST_PLAIN, family="qwen2", qkv_bias=True)
PARTIAL = replace(TINIEST_PLAIN, partial_rotary=0.5)
WIDTHS = {"dim": 64, "ffn_dim": 96, "num_heads": 4, "num_kv_heads": 2}


@pytest.mark.parametrize("rows", [64, 128])
def test_linears_equal_torch(rows: int) -> None:
    linear_checks.check_round_linears(0, SHAPE, rows)


@pytest.mark.parametrize(("has_norms", "has_bias"), [(False, True), (True, False)])
def test_sums_of_qkv_are_rotated_and_written(has_norms: bool, has_bias: bool) -> None:
    linear_checks.check_rotated_sums(0, SHAPE, 64, has_norms, has_bias)


@pytest.mark.parametrize("config", [TINIEST, TINIEST_PLAIN, BIASED, PARTIAL], ids=["norms", "plain", "bias", "partial"])
def test_a_round_of_many_sequences_equals_the_eager_network(config) -> None:  # type: ignore[no-untyped-def]
    wide_round_checks.check_round_of_many(replace(config, **WIDTHS), 64, 20)


def test_a_round_that_cublas_multiplies_equals_the_eager_network() -> None:
    wide_round_checks.check_round_of_many(replace(TINIEST, **WIDTHS), 256, 5)


@pytest.mark.parametrize(
    ("num_outputs", "depth", "splits"), [(2048, 1536, 4), (1536, 1536, 4), (1536, 8960, 5), (64, 64, 1), (576, 576, 5)]
)
def test_splits_fill_the_sms_evenly(num_outputs: int, depth: int, splits: int) -> None:
    assert num_splits(num_outputs, depth) == splits
