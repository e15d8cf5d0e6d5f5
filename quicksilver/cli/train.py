"""`quicksilver train RECIPE.toml`: run a recipe's stages. The words after the verb are those of the training room."""

from __future__ import annotations

import sys

import typer


def train(context: typer.Context) -> None:
    """Make an adapter from a recipe (see recipes/ and docs/training.md); --help lists the words."""
    from quicksilver.training.run import main

    sys.exit(main(context.args))
