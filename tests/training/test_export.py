"""The provenance in the header of an adapter file."""

from __future__ import annotations

import json
from pathlib import Path

from quicksilver.training.export import provenance
from quicksilver.training.prepared_data import Facts
from quicksilver.training.recipe import load_recipe

_RECIPE = Path(__file__).parents[2] / "recipes" / "coder-1.5b-canvas.toml"


def test_header_has_the_changes_without_folders() -> None:
    changes = ["canvas.optim.max_seconds=440", 'canvas.warm_start="/somewhere/else/start.safetensors"']
    facts = Facts(8, (), 0, {}, ("chat",), {"chat": 2}, 30, 20, 1, 0, "ab")
    header = provenance(load_recipe(_RECIPE, changes), facts, None, {"step": 3})
    assert json.loads(header["overrides"]) == ["canvas.optim.max_seconds=440", 'canvas.warm_start="start.safetensors"']
    assert header["recipe_sha256"] == load_recipe(_RECIPE).sha256
    assert json.loads(header["training"]) == {"step": 3}
