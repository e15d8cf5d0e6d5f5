"""A network in one launch, in each of the ways it can be told to run: all equal the plain network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels import block, network, resident
from tests import graph_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PLAIN = ModelConfig("llama", 2, 32, 64, 2, 1, 32, 60, 256, tied_head=True)
BIASED = replace(PLAIN, family="qwen2", qkv_bias=True)
THIRDS = ModelConfig("llama", 1, 96, 192, 3, 1, 32, 60, 256, tied_head=True)
"""Every depth is a multiple of three steps."""


@pytest.mark.parametrize(
    ("config", "by_parts", "shared_rows", "splits_kinds", "kinds"),
    [
        (PLAIN, False, 16, False, ("one", "canvas")),
        (PLAIN, True, 16, True, ("one", "canvas")),
        (BIASED, True, 32, False, ("one", "canvas", "branches")),
        (PLAIN, False, 64, True, ("chunk", "canvas")),
    ],
)
def test_every_way_equals_the_plain_network(
    monkeypatch: pytest.MonkeyPatch,
    config: ModelConfig,
    by_parts: bool,
    shared_rows: int,
    splits_kinds: bool,
    kinds: tuple[str, ...],
) -> None:
    monkeypatch.setattr(resident, "BY_PARTS", by_parts)
    monkeypatch.setattr(resident, "SHARED_ROWS", shared_rows)
    monkeypatch.setattr(resident, "SPLITS_KINDS", splits_kinds)
    checks.check_network(config, 0, True, kinds)


@pytest.mark.parametrize("config", [PLAIN, BIASED])
def test_attention_half_in_one_launch_equals_the_plain_network(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig
) -> None:
    launched = 0

    def run(*args: Any) -> None:
        nonlocal launched
        launched += 1
        block.run_block(*args)

    monkeypatch.setattr(network, "fits", lambda *_: False)
    monkeypatch.setattr(network, "run_block", run)
    monkeypatch.setattr(block, "BLOCK_BYTES", 1 << 40)
    checks.check_network(config, 0, True, ("one", "canvas"))
    assert launched == 2 * config.num_layers


@pytest.mark.parametrize("has_block", [False, True])
def test_three_chains_of_products_equal_the_plain_network(monkeypatch: pytest.MonkeyPatch, has_block: bool) -> None:
    monkeypatch.setattr(resident, "CHAINS", 3)
    monkeypatch.setattr(block, "CHAINS", 3)
    monkeypatch.setattr(resident, "depth_step", lambda _: 32)
    monkeypatch.setattr(block, "depth_step", lambda _: 32)
    if has_block:
        monkeypatch.setattr(network, "fits", lambda *_: False)
        monkeypatch.setattr(block, "BLOCK_BYTES", 1 << 40)
    checks.check_network(THIRDS, 0, True, ("one", "canvas"))
