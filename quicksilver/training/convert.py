"""Converts a Llama or Qwen checkpoint into a diffusion model: trains a canvas adapter without external data.

Questions come from a user's file or from the package. For part of the data the model writes the question too. The model
is trained on its own answers, so its answers do not change: the adapter only adds drafting.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from quicksilver.dialect import AUTOREGRESSIVE
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.hub.snapshots import look_up, parse_hub_name, pull_snapshot, pulled_files
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.checkpoint import open_source
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.comparison import write_page
from quicksilver.training.formats import Formatter
from quicksilver.training.generate import PromptSet, prompt_set
from quicksilver.training.prepared_data import EVAL_PROMPTS, PROMPTS, Facts
from quicksilver.training.progress import RunProgress
from quicksilver.training.recipe import load_recipe
from quicksilver.training.run import join_ranks, measured
from quicksilver.training.stages import CANVAS, Run, run_stage
from quicksilver.training.synthesis.questions import question_rows

STAGES = ("generate", "canvas", "export", "evaluate")
NUM_HELD_OUT = 64
NUM_OWN_QUESTIONS = 20000
# Memory of canvas training for each token of a row, layer and unit of width: 41 GB with a 1.5B network and 16 rows.
ACTIVATION_BYTES = 8
# Share of prompts for which the model writes the question too.
SELF_PLAY_SHARE = 0.2

RECIPE = """# Written by `quicksilver convert`; `quicksilver train` runs it again.
name = "{name}"
description = "canvas adapter of {name}"
stages = ["generate", "canvas", "export", "evaluate"]

[base]
weights = "{weights}"
dtype = "{dtype}"

[generate]
batch = {batch}
row_len = {row_len}
max_seconds = {generate_seconds}
max_new_tokens = {answer_len}

[canvas]
rank = {rank}
canvas_lens = [16]
canvas_rows = {row_len}
rows_per_batch = {rows_per_batch}

[canvas.optim]
lr = 1e-3
max_seconds = {canvas_seconds}
log_every = 20
sample_every = 200
checkpoint_every = 100

[evaluate]
canvas_lens = [8, 16]
max_new_tokens = {answer_len}
batch = {num_held_out}
"""


@dataclass(frozen=True, slots=True)
class Conversion:
    weights: Path
    out: Path
    questions: Path | None
    minutes: float
    rank: int
    device: torch.device


def convert(job: Conversion) -> Path:
    """Run all stages and return the path of the adapter. Completed stages are skipped."""
    config = open_source(job.weights).config
    check_convertible(config)
    recipe = load_recipe(_write_recipe(job, config))
    prepare(job)
    run = Run(recipe, job.out, job.out / "data", job.weights, None, job.device)
    with RunProgress(STAGES) as progress:
        for stage in STAGES:
            progress.begin(stage)
            run_stage(run, stage)
    return job.out / CANVAS


def check_convertible(config: ModelConfig) -> None:
    """Refuses networks that training cannot compute, and checkpoints that need no canvas adapter."""
    if config.dialect != AUTOREGRESSIVE:
        raise InvalidRequest("this is a diffusion checkpoint; serve it as it is", param="weights")
    if not config.is_plain:
        raise InvalidRequest(
            "only dense Llama and Qwen checkpoints can be converted; serve it with `ar`", param="weights"
        )


def gpu_sizes(config: ModelConfig, free_bytes: int) -> dict[str, int]:
    """Sizes of the stages for a network in bfloat16: as large as is useful, and within half of the memory that the
    weights leave."""
    row_len = 1024
    room = (free_bytes - 2 * config.num_params) // 2
    kept = row_len * config.kv_bytes_per_token(dtype_bytes=2)
    trained = ACTIVATION_BYTES * row_len * config.num_layers * (config.dim + config.ffn_dim)
    batch, rows = min(1024, room // kept), min(16, room // trained)
    if min(batch, rows) < 1:
        raise InvalidRequest(
            f"{free_bytes / 2**30:.0f} GiB of GPU memory are too few to convert {config.num_params / 1e9:.1f} B "
            "weights; use a GPU with more memory or a smaller checkpoint",
            param="weights",
        )
    return {"batch": batch, "row_len": row_len, "rows_per_batch": rows, "answer_len": 256}


def _write_recipe(job: Conversion, config: ModelConfig) -> Path:
    is_gpu = job.device.type == "cuda"
    small = {"batch": 8, "row_len": 128, "rows_per_batch": 4, "answer_len": 64}
    text = RECIPE.format(
        name=job.weights.stem,
        weights=job.weights.as_posix(),
        dtype="bfloat16" if is_gpu else "float32",
        rank=job.rank,
        generate_seconds=job.minutes * 12,
        canvas_seconds=job.minutes * 45,
        num_held_out=NUM_HELD_OUT if is_gpu else 8,
        **(gpu_sizes(config, torch.cuda.mem_get_info(job.device)[0]) if is_gpu else small),
    )
    job.out.mkdir(parents=True, exist_ok=True)
    path = job.out / "recipe.toml"
    path.write_text(text)
    return path


def prepare(job: Conversion) -> None:
    """Prompts in the template and ids of the checkpoint, some of them held out."""
    tokenizer = Tokenizer.load(job.weights)
    formatter = Formatter(tokenizer, 1 << 20)
    template = ChatTemplate.for_tokenizer(tokenizer)
    questions = _questions(job.questions)
    prompts = [list(template.render((Message("user", text),)).ids) for text in questions]
    held, kept = prompts[:NUM_HELD_OUT], prompts[NUM_HELD_OUT:] or prompts
    folder = job.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    prompt_set(held, [0] * len(held)).save(folder / EVAL_PROMPTS)
    training = _with_self_play(kept, formatter)
    training.save(folder / PROMPTS)
    digest = hashlib.sha256((folder / PROMPTS).read_bytes()).hexdigest()
    documents = {"questions": len(questions)}
    Facts(
        tokenizer.vocab_size, tokenizer.eos_ids, formatter.end_id, {}, ("questions",), documents, 0, 0, 0, 0, digest
    ).save(folder)


def _with_self_play(prompts: list[list[int]], formatter: Formatter) -> PromptSet:
    bare = [formatter.self_play_prompt()] * max(1, int(len(prompts) * SELF_PLAY_SHARE))
    everything = [*((ids, 1) for ids in prompts), *((ids, 2) for ids in bare)]
    return prompt_set([ids for ids, _ in everything], [0] * len(everything), [ends for _, ends in everything])


def _questions(path: Path | None) -> list[str]:
    """Read one question per line, as plain text or JSON with `prompt`. Without a file, use the built-in ones.
    Shuffled, without duplicates."""
    if path is None:
        found = [row.messages[0].content for row in question_rows(NUM_OWN_QUESTIONS, random.Random(0))]
    else:
        try:
            found = [_line(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"questions: {path} cannot be read: {error}") from error
    unique = list(dict.fromkeys(found))
    if not unique:
        raise InvalidRequest(f"questions: {path} has none")
    random.Random(0).shuffle(unique)
    return unique


def _line(line: str) -> str:
    return str(json.loads(line)["prompt"]) if line.lstrip().startswith("{") else line


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="quicksilver convert", description="Teach a checkpoint to draft for itself.")
    words.add_argument("weights", type=Path, help="GGUF file, folder or hub name of a Llama or Qwen checkpoint")
    words.add_argument("--out", type=Path, help="folder for the adapter and the logs (default runs/NAME)")
    words.add_argument("--questions", type=Path, help="what it will be asked: a question a line, or JSON with `prompt`")
    words.add_argument("--minutes", type=float, default=20.0, help="how long to train (default 20)")
    words.add_argument("--rank", type=int, default=32, help="of the adapter (default 32)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words.add_argument("--device", default=device, help="cpu or cuda (default: a GPU if there is one)")
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    words = parser().parse_args(arguments)
    out = words.out or Path("runs") / words.weights.stem
    try:
        weights, device = _local(words.weights), join_ranks(words.device)
        adapter = convert(Conversion(weights, out, words.questions, words.minutes, words.rank, device))
    except QuicksilverError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    placed = _put_beside(weights, adapter)
    page = write_page(out, str(words.weights))
    serve = f"Serve: quicksilver serve --model {words.weights}"
    sys.stdout.write(f"{measured(out)}\nAdapter: {placed}\nComparison of ar and verify: {page}\n{serve}\n")
    return 0


def _local(weights: Path) -> Path:
    """A path as it is; the folder of a hub repository, which is pulled if it is not on this machine."""
    name = parse_hub_name(weights.as_posix())
    if name is None:
        return weights
    pulled = pulled_files(name)
    return pulled.weights if pulled is not None else pull_snapshot(look_up(name))


def _put_beside(weights: Path, adapter: Path) -> Path:
    """Copy the adapter to `adapters/` beside the weights, where loading looks for it."""
    folder = (weights if weights.is_dir() else weights.parent) / "adapters"
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(adapter, folder / CANVAS))
