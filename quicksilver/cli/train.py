"""`quicksilver train RECIPE.toml` and `quicksilver convert WEIGHTS`. The training package parses their arguments."""

from __future__ import annotations

import sys

import typer


def train(context: typer.Context) -> None:
    """Make an adapter from a recipe (see recipes/ and docs/guides/training.md). --help lists the options."""
    from quicksilver.training.run import main

    sys.exit(main(context.args))


def convert(context: typer.Context) -> None:
    """Turn a Llama or Qwen checkpoint into a diffusion model. --help lists the options."""
    from quicksilver.training.convert import main

    sys.exit(main(context.args))
