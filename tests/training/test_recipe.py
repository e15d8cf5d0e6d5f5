from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.training.recipe import STAGES, load_recipe
from quicksilver.training.sources import SOURCES

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert set(recipe.stages) <= set(STAGES)
    assert set(recipe.data.rows) <= set(SOURCES)
    assert len(recipe.sha256) == 64


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"', "recipe.stages: missing"),
        ('name = "x"\nstages = []', "at least one"),
        ('name = "x"\nstages = ["bake"]', r"recipe.stages\[0\]: 'bake' is not one of"),
        ('name = "x"\nstages = ["skill"]\n[skill]\nrnak = 4', "recipe.skill.rnak: unknown key"),
        ('name = "x"\nstages = ["skill"]\n[skill]\nrank = "4"', "recipe.skill.rank: '4' is not int"),
        ('name = "x"\nstages = ["skill"]\n[canvas]\ncanvas_lens = 16', "recipe.canvas.canvas_lens"),
        ("name = ", "recipe.toml"),
    ],
)
def test_a_misread_recipe_is_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load_recipe(write(tmp_path, text))


def test_overrides_change_values_and_are_remembered(tmp_path: Path) -> None:
    path = write(tmp_path, 'name = "x"\nstages = ["skill"]\n[skill.optim]\nlr = 1e-3')
    plain = load_recipe(path)
    changed = load_recipe(path, ["skill.optim.lr=2e-3", "canvas.canvas_lens=[8, 16]"])
    assert (plain.skill.optim.lr, changed.skill.optim.lr) == (1e-3, 2e-3)
    assert changed.canvas.canvas_lens == (8, 16)
    assert plain.sha256 == changed.sha256
    assert changed.overrides == ("skill.optim.lr=2e-3", "canvas.canvas_lens=[8, 16]")


def test_an_override_that_is_not_toml_names_the_override(tmp_path: Path) -> None:
    path = write(tmp_path, 'name = "x"\nstages = ["skill"]')
    with pytest.raises(InvalidRequest, match=r"override 'base\.weights=nano'"):
        load_recipe(path, ["base.weights=nano"])


def test_an_override_without_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"section\.key=value"):
        load_recipe(write(tmp_path, 'name = "x"\nstages = ["skill"]'), ["skill.rank"])
