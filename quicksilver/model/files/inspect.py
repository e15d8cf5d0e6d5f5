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
    kv_bytes_per_token: Mapping[str, int]  # KV memory per token, by dtype of the cache


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
        kv_bytes_per_token={"float32": config.kv_bytes_per_token(4), "bfloat16": config.kv_bytes_per_token(2)},
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
        kv_bytes_per_token={"float32": config.kv_bytes_per_token(4), "bfloat16": config.kv_bytes_per_token(2)},
    )


def _read(path: Path) -> tuple[str, ModelConfig, list[TensorEntry]]:
    source = open_source(path)
    if isinstance(source, GgufSource):
        return "gguf", source.config, list(source.header.entries.values())
    return "safetensors", source.config, _entries(path)


def _entries(folder: Path) -> list[TensorEntry]:
    return [entry for path in shard_paths(folder) for entry in read_safetensors_header(path).entries.values()]


def weight_bytes(config: ModelConfig) -> dict[str, int]:
    """Bytes of the weights in memory: float32, bfloat16, int8 (CPU) and int4 (CUDA, without the 16-bit copy).

    Quantised models store the head and the embedding table separately; both are counted with one byte per value.
    """
    tables = 2 * config.vocab_size * config.dim
    layers = config.num_params - config.vocab_size * config.dim * (1 if config.tied_head else 2)
    int4 = layers // 2 + layers // 32 * 4
    return {
        "float32": config.num_params * 4,
        "bfloat16": config.num_params * 2,
        "int8": layers + tables,
        "int4": int4 + tables,
    }
