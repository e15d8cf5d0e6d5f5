"""Masked diffusion over the whole text: every token attends to every other one, so no KV can be kept.

LLaDA-8B and LLaDA-1.5 have the network of Llama under other names; Dream and DiffuCoder that of Qwen2.5. Tiny-A2D has
the network of Qwen3, as masked diffusion (mdlm) and as block diffusion (bd3lm).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import ContextKind, Dialect
from quicksilver.errors import CheckpointRefused
from quicksilver.model.families.block_diffusion import QWEN_STOP_IDS, block_dialect, size
from quicksilver.model.families.family import Family

# Positions after the text that are masked together, and the part of them that is filled first.
_ANSWER_LEN, _SUB_BLOCK_LEN = 128, 32


def _full_dialect(mask_id: int, stop_ids: tuple[int, ...], *, is_shifted: bool) -> Dialect:
    return Dialect(
        context=ContextKind.FULL,
        is_shifted=is_shifted,
        block_len=_ANSWER_LEN,
        sub_block_len=_SUB_BLOCK_LEN,
        mask_id=mask_id,
        stop_ids=stop_ids,
        decoders=(DecoderName.CONFIDENCE,),
        default=DecoderParams(DecoderName.CONFIDENCE, threshold=0.9),
    )


def _llada(config: Mapping[str, Any], name: str) -> Dialect:
    return _full_dialect(size(config, "mask_token_id", 126336), (126081, 126348), is_shifted=False)


def _dream(config: Mapping[str, Any], name: str) -> Dialect:
    return _full_dialect(size(config, "mask_token_id", 151666), QWEN_STOP_IDS, is_shifted=True)


def _tiny_a2d(config: Mapping[str, Any], name: str) -> Dialect:
    """The configs of both kinds are the same: the name of the checkpoint tells them apart."""
    if config.get("right_shift_logits"):
        raise CheckpointRefused("config.json: Tiny-A2D with shifted logits is not supported")
    mask_id = size(config, "mask_token_id", 151669)
    if "mdlm" in f"{name} {config.get('_name_or_path') or ''}".lower():
        return _full_dialect(mask_id, QWEN_STOP_IDS, is_shifted=False)
    return block_dialect(size(config, "block_size", 32), mask_id, QWEN_STOP_IDS, threshold=0.9)


_OLMO_KEYS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "mlp_hidden_size",
    "max_position_embeddings": "max_sequence_length",
}


def _llada_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """OLMo's key names -> Llama's. The embedding may have more rows than the vocabulary has tokens."""
    if config.get("block_type", "llama") != "llama" or config.get("include_bias") or config.get("include_qkv_bias"):
        raise CheckpointRefused("config.json: only LLaDA's llama blocks without biases are supported")
    renamed = {key: config[olmo] for key, olmo in _OLMO_KEYS.items() if olmo in config}
    vocab_size = config.get("embedding_size") or config["vocab_size"]
    return {
        **config,
        **renamed,
        "vocab_size": vocab_size,
        "tie_word_embeddings": bool(config.get("weight_tying", config.get("tie_word_embeddings", False))),
        "hidden_act": config.get("activation_type", config.get("hidden_act", "silu")),
    }


_BLOCK = "model.transformer.blocks.{i}"
LLADA_NAMES = {
    "tokens.weight": ("model.transformer.wte.weight",),
    "norm.weight": ("model.transformer.ln_f.weight",),
    "head.weight": ("model.transformer.ff_out.weight",),
    "layers.{i}.attn_norm.weight": (f"{_BLOCK}.attn_norm.weight",),
    "layers.{i}.ffn_norm.weight": (f"{_BLOCK}.ff_norm.weight",),
    "layers.{i}.qkv.weight": tuple(f"{_BLOCK}.{part}_proj.weight" for part in "qkv"),
    "layers.{i}.o.weight": (f"{_BLOCK}.attn_out.weight",),
    "layers.{i}.gate_up.weight": (f"{_BLOCK}.ff_proj.weight", f"{_BLOCK}.up_proj.weight"),
    "layers.{i}.down.weight": (f"{_BLOCK}.ff_out.weight",),
}

LLADA = Family(
    name="llada",
    architecture="LLaDAModelLM",
    dialect=_llada,
    standard_config=_llada_config,
    hf_names=LLADA_NAMES,
)
DREAM = Family(name="dream", architecture="DreamModel", model_types=("Dream",), dialect=_dream, qkv_bias=True)
TINY_A2D = Family(
    name="tiny-a2d",
    architecture="A2DQwen3LMHeadModel",
    model_types=("a2d-qwen3",),
    dialect=_tiny_a2d,
    qk_norm=True,
)
