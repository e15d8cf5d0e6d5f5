"""The persistent kernel equals the eager network with every setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.cuda.kernels import network, persistent_weights
from quicksilver.model.config import ModelConfig
from tests.support import graph_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PLAIN = ModelConfig("llama", 2, 32, 64, 2, 1, 32, 60, 256, tied_head=True)
BIASED = replace(PLAIN, family="qwen2", qkv_bias=True)


@pytest.mark.parametrize(
    ("config", "settings", "kinds"),
    [
        (PLAIN, {"TILE_ROWS": 16}, ("one", "canvas")),
        (PLAIN, {"TILE_ROWS": 16, "SKIP_EMPTY_TILES": True}, ("chunk", "canvas")),
        (BIASED, {"TILE_ROWS": 32, "SKIP_EMPTY_TILES": True}, ("one", "canvas", "branches")),
        (PLAIN, {"TILE_ROWS": 32}, ("chunk", "canvas")),
    ],
)
def test_every_setting_equals_the_eager_network(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, settings: dict[str, int], kinds: tuple[str, ...]
) -> None:
    assert network.USE_PERSISTENT
    for name, value in settings.items():
        monkeypatch.setattr(persistent_weights, name, value)
    checks.check_network(config, 0, True, kinds)
