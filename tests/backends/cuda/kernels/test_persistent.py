"""A network in one launch, in each of the ways it can be told to run: all equal the plain network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.cuda.kernels import persistent_weights
from quicksilver.model.config import ModelConfig
from tests.support import graph_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PLAIN = ModelConfig("llama", 2, 32, 64, 2, 1, 32, 60, 256, tied_head=True)
BIASED = replace(PLAIN, family="qwen2", qkv_bias=True)


@pytest.mark.parametrize(
    ("config", "ways", "kinds"),
    [
        (PLAIN, {"SHARED_ROWS": 16}, ("one", "canvas")),
        (PLAIN, {"SHARED_ROWS": 16, "COUNTS_USED": True}, ("chunk", "canvas")),
        (BIASED, {"SHARED_ROWS": 32, "COUNTS_USED": True}, ("one", "canvas", "branches")),
        (PLAIN, {"SHARED_ROWS": 32}, ("chunk", "canvas")),
    ],
)
def test_every_way_equals_the_plain_network(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, ways: dict[str, int], kinds: tuple[str, ...]
) -> None:
    for name, value in ways.items():
        monkeypatch.setattr(persistent_weights, name, value)
    checks.check_network(config, 0, True, kinds)


def test_fixed_products_ignore_company() -> None:
    checks.check_fixed_products_ignore_company(replace(PLAIN, num_layers=1), (14,))
