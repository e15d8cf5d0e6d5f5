"""A model as a checkpoint of Hugging Face: config.json and model.safetensors in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from quicksilver.core import DecoderName
from quicksilver.dialect import Dialect
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from quicksilver.model.families import FAMILIES
from quicksilver.model.files.tensor_names import part_names
from quicksilver.model.gemma_config import GemmaConfig
from quicksilver.model.transformer import Transformer

FULL, SLIDING = "full_attention", "sliding_attention"
# Keys of DiffusionGemma's text network that have Llama's names.
SHARED_KEYS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
)  # fmt: skip


def save_model(model: Transformer, folder: Path | str) -> None:
    """The model must not be quantised. A canvas adapter is left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = model.config, dict[str, Tensor]()
    names, num_experts = FAMILIES[config.family].hf_names, config.moe.num_experts if config.moe is not None else 0
    for target, parameter in model.named_parameters():
        if target.startswith("canvas."):
            continue
        part_list = part_names(names, target, num_experts)
        if len(part_list) == 1:
            tensors[part_list[0]] = parameter.detach().contiguous()
            continue
        matrix = parameter.detach().flatten(0, 1) if parameter.dim() == 3 else parameter.detach()
        parts = matrix.split(part_rows(config, target, matrix, len(part_list)))
        tensors |= {name: rows.contiguous() for name, rows in zip(part_list, parts, strict=True)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(config), indent=2) + "\n")


def part_rows(config: ModelConfig, target: str, matrix: Tensor, num_parts: int) -> list[int]:
    if ".qkv." in target and num_parts == 3:
        return [config.q_dim, config.kv_dim, config.kv_dim]
    if config.gemma is not None and ".qk." in target:
        return [len(matrix) - config.gemma.full_kv_dim, config.gemma.full_kv_dim]
    return [len(matrix) // num_parts] * num_parts


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """The config under Hugging Face's names."""
    family, dialect = FAMILIES[config.family], config.dialect
    blocks = {"block_size": dialect.block_len, "mask_token_id": dialect.mask_id} if dialect.mask_id is not None else {}
    flat = {
        **blocks,
        **({"partial_rotary_factor": config.partial_rotary} if config.partial_rotary != 1 else {}),
        **(experts(config.moe) if config.moe is not None else {}),
        **({"_name_or_path": name} if (name := saved_name(config)) else {}),
        **({} if family.has_body({}) else {"qk_norm": True}),
        "architectures": [family.architecture],
        "model_type": family.known_model_types[0],
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_len,
        "rope_parameters": rope(config),
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu",
    }
    return flat if config.gemma is None else gemma_config(flat, config.gemma, dialect)


def rope(config: ModelConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_scaling
    if scaling is not None:
        found |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind != "linear":
        found |= {"original_max_position_embeddings": scaling.original_context_len}
    if scaling is not None and scaling.kind == "llama3":
        found |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling is not None and scaling.kind == "yarn":
        found |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        found |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
        found |= {"llama_4_scaling_beta": config.query_scale_beta} if config.query_scale_beta else {}
    return found


def experts(moe: MoeConfig) -> dict[str, Any]:
    """Under the names of Qwen3-MoE and LLaDA2."""
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.ffn_dim,
        "score_function": moe.router,
        "n_group": moe.num_groups,
        "topk_group": moe.top_groups,
        "norm_topk_prob": moe.is_normalised,
        "routed_scaling_factor": moe.scale,
        "num_shared_experts": moe.shared_ffn_dim // moe.ffn_dim,
        "first_k_dense_replace": moe.num_dense,
    }


def saved_name(config: ModelConfig) -> str:
    """The name of the checkpoint, where the config alone does not tell the dialect; else empty."""
    dialect = config.dialect
    if config.family == "i-dlm":
        return "i-dlm"
    if config.family == "tiny-a2d":
        return "" if dialect.keeps_kv else "tiny-a2d-mdlm"
    if config.family != "llada2":
        return ""
    if DecoderName.EDIT not in dialect.decoders:
        return "llada2.0"
    return "llada2.1" if dialect.default.name is DecoderName.EDIT else ""


def gemma_config(flat: Mapping[str, Any], gemma: GemmaConfig, dialect: Dialect) -> dict[str, Any]:
    """The config.json of transformers for DiffusionGemma."""
    full = {
        "rope_type": "proportional",
        "rope_theta": gemma.full_rope_theta,
        "partial_rotary_factor": gemma.full_partial_rotary,
    }
    text = {
        **{key: flat[key] for key in SHARED_KEYS},
        "model_type": "diffusion_gemma_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [FULL if is_full else SLIDING for is_full in gemma.is_full],
        "sliding_window": gemma.window,
        "global_head_dim": gemma.full_head_dim,
        "num_global_key_value_heads": gemma.full_kv_heads,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": flat["rope_parameters"]["rope_theta"]},
            FULL: full,
        },
        "final_logit_softcapping": gemma.logit_softcap,
        "num_experts": flat["num_experts"],
        "top_k_experts": flat["num_experts_per_tok"],
        "moe_intermediate_size": flat["moe_intermediate_size"],
    }
    return {
        "architectures": flat["architectures"],
        "model_type": flat["model_type"],
        "text_config": text,
        "vision_config": None,
        "tie_word_embeddings": flat["tie_word_embeddings"],
        "canvas_length": dialect.default.canvas_len,
    }
