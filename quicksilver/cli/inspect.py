"""`quicksilver inspect NAME`: family, sizes and a memory plan of a checkpoint, read from its headers only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from quicksilver.cli.console import errors, out
from quicksilver.cli.download import check_family, find, missing_tokenizer
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.hub.snapshots import look_up, parse_hub_name, pulled_files

if TYPE_CHECKING:
    from quicksilver.hub.resolve import ModelFiles
    from quicksilver.model.files.inspect import CheckpointSummary

# Number formats of each device.
FORMATS = (("CPU", ("int8", "bfloat16", "float32")), ("GPU", ("bfloat16", "fp8", "int4")))


def inspect(
    model: Annotated[str, typer.Argument(help="Catalogue name, path or hub name.")],
    context_len: Annotated[int, typer.Option(min=0, help="Context for the plan; 0: the checkpoint's.")] = 0,
) -> None:
    """Describe a checkpoint: family, sizes, number formats, memory plan."""
    files, summary = _summary(model)
    for name, value in facts(files, summary).items():
        out.print(f"{name:>12}  {value}", markup=False, highlight=False, soft_wrap=True)
    context_len = context_len or summary.config.context_len
    out.print(f"\nMemory for one request with the full context of {context_len:,} tokens:", highlight=False)
    out.print(memory_table(summary, context_len))
    out.print(f"This machine has {_free_memory() / 1e9:.1f} GB of free memory.", highlight=False)


def _summary(model: str) -> tuple[ModelFiles, CheckpointSummary]:
    """Of a hub repository that is not on this machine, only the config is fetched."""
    from quicksilver.hub.resolve import ModelFiles
    from quicksilver.model.config import ModelConfig
    from quicksilver.model.files.inspect import describe, describe_config
    from quicksilver.model.files.shards import checkpoint_name, read_json

    name = parse_hub_name(model)
    if name is None or pulled_files(name) is not None:
        files = find(model)
        if missing_tokenizer(files) is not None:
            errors.print(
                f"{files.weights} has no tokenizer.json and cannot be served without it",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        return files, describe(files.weights)
    snapshot = look_up(name)
    folder = check_family(snapshot)
    config = ModelConfig.from_hf(read_json(folder / "config.json"), checkpoint_name(folder))
    weights = sum(size for file, size in snapshot.sizes.items() if file.endswith(".safetensors"))
    return ModelFiles(str(name), folder), describe_config(config, folder, weights)


def dialect_words(dialect: Dialect) -> str:
    """How the checkpoint predicts masked positions, in one line."""
    if dialect == AUTOREGRESSIVE:
        return "autoregressive; drafts with a canvas adapter"
    if dialect.noise_vocab:
        return f"{dialect.context} context; a canvas of {dialect.default.canvas_len} random tokens, denoised in steps"
    blocks = f", blocks of {dialect.block_len}" if dialect.block_len else ""
    shift = "predicts the next position" if dialect.is_shifted else "predicts its own position"
    return f"{dialect.context} context{blocks}; a masked row {shift}; mask token {dialect.mask_id}"


def facts(files: ModelFiles, summary: CheckpointSummary) -> dict[str, str]:
    """One line per property, in words."""
    config = summary.config
    stored = ", ".join(
        f"{name} {100 * count / sum(summary.dtypes.values()):.0f} %" for name, count in summary.dtypes.items()
    )
    canvas = str(files.canvas or f"no adapter: quicksilver convert {files.weights} makes one")
    return {
        "weights": str(files.weights),
        "family": config.family,
        "dialect": dialect_words(config.dialect),
        "decoders": f"{', '.join(config.dialect.decoders)} (default {config.dialect.default.name})",
        "parameters": f"{summary.num_params / 1e6:,.1f} million",
        "layers": f"{config.num_layers}, width {config.dim:,}",
        "heads": f"{config.num_heads}, {config.num_kv_heads} of keys and values",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "context": f"{config.context_len:,} tokens",
        "KV per token": kv_words(summary),
        "file": f"{summary.format}, {summary.file_bytes / 1e6:,.0f} MB{': ' if stored else ''}{stored}",
        "skill": str(files.skill or "no adapter"),
        **({"canvas": canvas} if config.dialect == AUTOREGRESSIVE else {}),
    }


def memory_table(summary: CheckpointSummary, context_len: int) -> Table:
    """Weights, keys and values and their sum, for each number format, and the most that loading takes."""
    table = Table("device", "--weights", "weights", "KV cache", "together", "at load")
    from quicksilver.model.formats.weight_formats import formats_for, kv_number_bytes

    for device, formats in FORMATS:
        supported = formats_for(summary.config, "cpu" if device == "CPU" else "cuda")
        for name in formats:
            if name not in supported:
                continue
            weights, loading = summary.weight_bytes[name], summary.loading_bytes[name]
            kv = summary.config.kv_bytes_per_token(kv_number_bytes(name)) * context_len
            sizes = (weights, kv, weights + kv, loading + kv)
            table.add_row(device, name, *(f"{size / 1e9:.2f} GB" for size in sizes))
    return table


def kv_words(summary: CheckpointSummary) -> str:
    """Memory of one token's keys and values."""
    if not summary.config.dialect.keeps_kv:
        return "none: every forward is over the whole text"
    sizes = [summary.config.kv_bytes_per_token(num_bytes) / 1024 for num_bytes in (2, 4)]
    return f"{sizes[0]:,.1f} KiB, with float32 weights {sizes[1]:,.1f} KiB"


def _free_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
