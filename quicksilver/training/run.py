"""Runs a recipe: `python -m quicksilver.training.run RECIPE.toml [--stage NAME] [--run DIR] [--set
section.key=value]`.

`quicksilver train` calls `main` with the same arguments. Under torchrun every process runs the same stages and
gradients are averaged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from quicksilver.errors import QuicksilverError
from quicksilver.hub.resolve import resolve
from quicksilver.training.export import commit
from quicksilver.training.progress import RunProgress
from quicksilver.training.recipe import STAGES, load_recipe
from quicksilver.training.stages import CANVAS, SKILL, Run, run_stage


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="quicksilver train", description="Make an adapter from a recipe.")
    words.add_argument("recipe", type=Path, help="TOML file, see recipes/")
    words.add_argument("--stage", action="append", choices=STAGES, help="only these stages, in the order given")
    words.add_argument("--run", type=Path, help="folder for results (default runs/NAME)")
    words.add_argument("--data", type=Path, help="folder of prepared data (default RUN/data)")
    words.add_argument("--base", type=Path, help="base weights, instead of the recipe's")
    words.add_argument("--teacher", type=Path, help="the distil stage's teacher, instead of the recipe's")
    words.add_argument("--skill", type=Path, help="skill adapter to merge first, instead of the recipe's")
    words.add_argument("--commit", help="commit to record in exports (default: the checkout's)")
    words.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    words.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a recipe's value")
    return words


def run(recipe_path: Path, words: argparse.Namespace) -> None:
    """Run the stages of one recipe. Raises QuicksilverError with a message that says what to do."""
    recipe = load_recipe(recipe_path, words.set)
    device = join_ranks(words.device)
    folder = words.run or Path("runs") / recipe.name
    base, own_skill = find_base(str(words.base or recipe.base.weights))
    if own_skill is not None and not recipe.skill.warm_start:
        recipe = replace(recipe, skill=replace(recipe.skill, warm_start=str(own_skill)))
    skill = words.skill or (Path(recipe.base.skill) if recipe.base.skill else None)
    if skill is None and "skill" not in recipe.stages:
        skill = own_skill
    data, made_at = words.data or folder / "data", words.commit or commit()
    job = Run(recipe, folder, data, base, skill, device, made_at, words.teacher)
    stages = words.stage or recipe.stages
    with RunProgress(stages) as progress:
        for stage in stages:
            progress.begin(stage)
            run_stage(job, stage)
    if "export" in stages:
        sys.stdout.write(result_text(job, str(words.base or recipe.base.weights)))


def result_text(job: Run, model: str) -> str:
    """Three lines: what the run reached, where its adapters are, and how to serve them."""
    adapters = [path for name in (SKILL, CANVAS) if (path := job.folder / name).exists()]
    flags = " ".join(f"--adapter {path}" for path in adapters)
    serve = f"Serve: quicksilver serve --model {model} {flags}\n" if model else ""
    return f"{measured(job.folder)}\nAdapter: {', '.join(map(str, adapters))}\n{serve}"


def measured(folder: Path) -> str:
    """The figures of `evaluation.json` in words."""
    path = folder / "evaluation.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    parts = []
    if "parent_held_out_loss" in found:
        parts.append(f"held-out loss {found['parent_held_out_loss']:.3f} -> {found['skilled_held_out_loss']:.3f}")
    for name, domains in found.get("drafts", {}).items():
        kind, _, canvas_len = name.partition(" K=")
        if kind == "verify":
            drafts = domains["all"]
            text = (
                "text unchanged" if drafts["same_as_ar"] == 1 else f"{drafts['same_as_ar']:.1%} of the text unchanged"
            )
            parts.append(f"{drafts['tokens_per_round']:.1f} tokens per round with canvas {canvas_len} ({text})")
    return f"Result: {'; '.join(parts) or 'trained, not measured'}"


def find_base(name: str) -> tuple[Path | None, Path | None]:
    """The weights of a path, a catalogue name or a hub name, and the skill adapter of the model, if it has one."""
    if not name:
        return None, None
    if Path(name).exists():
        return Path(name), None
    files = resolve(name)
    return files.weights, files.skill


def join_ranks(device: str) -> torch.device:
    """Under torchrun one process per device; otherwise the requested device."""
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    if "LOCAL_RANK" not in os.environ:
        return torch.device(device)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return torch.device(device, int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device(device)


def main(arguments: Sequence[str] | None = None) -> int:
    words = parser().parse_args(arguments)
    try:
        run(words.recipe, words)
    except QuicksilverError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
