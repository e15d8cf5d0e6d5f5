"""Describe a checkpoint from its headers: family, sizes, number formats, and memory needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quicksilver.model.config import ModelConfig
from quicksilver.model.files.checkpoint import open_source
from quicksilver.model.files.gguf import GgufSource
from quicksilver.model.files.headers import TensorEntry, read_safetensors_header
from quicksilver.model.files.shards import shard_paths


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A checkpoint as its headers describe it."""

    path: Path
    format: str  # gguf or safetensors
    config: ModelConfig
    num_params: int
    file_bytes: int
    dtypes: Mapping[str, int]  # number of stored values by type, most frequent first
    weight_bytes: Mapping[str, int]  # memory of the weights in each number format
    loading_bytes: Mapping[str, int]  # the most that they take while they are loaded


def describe(path_or_dir: Path | str) -> CheckpointSummary:
    """Read and check the headers; raises like `load_model`. Of a GGUF file the first embedding rows are read too."""
    path = Path(path_or_dir)
    kind, config, entries = _read(path)
    dtypes: Counter[str] = Counter()
    for entry in entries:
        dtypes[entry.dtype] += entry.num_items
    return CheckpointSummary(
        path=path,
        format=kind,
        config=config,
        num_params=config.num_params,
        file_bytes=sum(entry.end - entry.start for entry in entries),
        dtypes=dict(dtypes.most_common()),
        weight_bytes=weight_bytes(config),
        loading_bytes=loading_bytes(config),
    )


def describe_config(config: ModelConfig, path: Path, file_bytes: int) -> CheckpointSummary:
    """The same from a config alone, for a checkpoint whose weights are not on this machine."""
    return CheckpointSummary(
        path=path,
        format="safetensors",
        config=config,
        num_params=config.num_params,
        file_bytes=file_bytes,
        dtypes={},
        weight_bytes=weight_bytes(config),
        loading_bytes=loading_bytes(config),
    )


def _read(path: Path) -> tuple[str, ModelConfig, list[TensorEntry]]:
    source = open_source(path)
    if isinstance(source, GgufSource):
        return "gguf", source.config, list(source.header.entries.values())
    return "safetensors", source.config, _entries(path)


def _entries(folder: Path) -> list[TensorEntry]:
    return [entry for path in shard_paths(folder) for entry in read_safetensors_header(path).entries.values()]


def weight_bytes(config: ModelConfig) -> dict[str, int]:
    """Bytes of the weights in memory once a model is loaded, by number format.

    int8 (CPU) stores the head and the embedding table separately, with one byte per value. fp8 and int4 (CUDA) keep
    embeddings and head in 16 bits, beside a head in fp8.
    """
    table, layers = _table_and_layers(config)
    wide_tables = 2 * table * (1 if config.tied_head else 2)
    return {
        "float32": config.num_params * 4,
        "bfloat16": config.num_params * 2,
        "int8": layers + 2 * table,
        "fp8": layers + table + wide_tables,
        "int4": _int4_bytes(layers) + table + wide_tables,
    }


def loading_bytes(config: ModelConfig) -> dict[str, int]:
    """The most memory that the weights take while a model is loaded, by number format: fp8 and int4 are made from all
    16-bit weights, which are freed afterwards; those of DiffusionGemma layer by layer."""
    table, layers = _table_and_layers(config)
    held = layers if config.gemma is None else layers // config.num_layers
    made = {"fp8": held + table, "int4": _int4_bytes(layers) + table}
    return weight_bytes(config) | {name: config.num_params * 2 + size for name, size in made.items()}


def _table_and_layers(config: ModelConfig) -> tuple[int, int]:
    """Parameters of one table over the vocabulary, and of everything but embeddings and head."""
    table = config.vocab_size * config.dim
    return table, config.num_params - table * (1 if config.tied_head else 2)


def _int4_bytes(num_weights: int) -> int:
    """Four bits per weight, and a scale and a zero point of 16 bits each per 32 weights."""
    return num_weights // 2 + num_weights // 32 * 4
