"""Writes the table of diffusion families and their features, from the records in `quicksilver.model.families`."""

from __future__ import annotations

import sys
from typing import Any

from quicksilver.core import DecoderName
from quicksilver.dialect import ContextKind
from quicksilver.model.config import ModelConfig
from quicksilver.model.families import FAMILIES
from tools.sections import ROOT, table, write_pages

PAGE = ROOT / "docs/reference/families/index.md"
PAGES = {
    "sdar": "sdar", "sdar-moe": "sdar", "llada2": "llada2", "diffusion-gemma": "diffusion-gemma",
    "nemotron-labs-diffusion": "nemotron",
    "fast-dllm-v2": "fast-dllm", "efficient-dlm": "other-block", "stable-diffcoder": "other-block",
    "tiny-a2d": "other-block", "i-dlm": "i-dlm", "wedlm-7b": "wedlm", "wedlm-8b": "wedlm", "llada": "llada",
    "dream": "dream",
}  # fmt: skip
# Names of checkpoints, where the name of the family does not tell the dialect.
CHECKPOINTS = {"llada2": "LLaDA2.1"}
# Keys of a config.json, of small sizes, and what published configs have beside them.
_KEYS: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 262_144, "max_position_embeddings": 64, "num_experts": 4,
    "num_experts_per_tok": 2, "top_k_experts": 2, "moe_intermediate_size": 24, "sliding_window": 9,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1, "mscale_all_dim": 1}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "wedlm-8b": {"qk_norm": True},
    "nemotron-labs-diffusion": {"rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.1}},
    "diffusion-gemma": {"text_config": _KEYS},
}


def config_of(name: str) -> ModelConfig:
    """The config of a family, with small sizes."""
    family = FAMILIES[name]
    classes = {"architectures": [family.architecture], "model_type": family.known_model_types[0]}
    return ModelConfig.from_hf({**_KEYS, **classes, **_PUBLISHED.get(name, {})}, CHECKPOINTS.get(name, name))


def support_table() -> str:
    header = (
        "family",
        "class",
        "context",
        "block",
        "decoders, default first",
        "exact cache",
        "scoring",
        "CPU int8",
        "CUDA graphs",
    )
    return table(header, [_row(name, config_of(name)) for name in PAGES])


def _row(name: str, config: ModelConfig) -> tuple[str, ...]:
    dialect = config.dialect
    decoders = sorted(dialect.decoders, key=lambda decoder: decoder is not dialect.default.name)
    return (
        f"[{name}]({PAGES[name]}.md)",
        f"`{FAMILIES[name].architecture}`",
        dialect.context.value,
        str(dialect.block_len or (dialect.default.canvas_len if dialect.noise_vocab else "any")),
        ", ".join(f"`{decoder}`" for decoder in decoders),
        "no" if dialect.context is ContextKind.FULL else "yes",
        "yes" if DecoderName.AR in dialect.decoders else "no",
        "yes" if config.is_plain else "no",
        "yes" if config.fits_cuda_kernels else "no",
    )


if __name__ == "__main__":
    sys.exit(write_pages({PAGE: {"support": support_table()}}))
