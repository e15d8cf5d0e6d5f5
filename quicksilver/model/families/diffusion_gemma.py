"""DiffusionGemma: block diffusion over uniform noise, with the layers of Gemma 4 and experts. Text only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.errors import CheckpointRefused
from quicksilver.model.experts import MoeConfig
from quicksilver.model.families.block_diffusion import size
from quicksilver.model.families.family import Family
from quicksilver.model.files.tensor_names import NameTable
from quicksilver.model.gemma_config import GemmaConfig

# In the published vocabulary: <eos>, the end of a turn, and the start of a tool's response.
_STOP_IDS = (1, 106, 50)
_CANVAS_LEN, _VOCAB_SIZE, _STEPS = 256, 262_144, 48
_FULL, _SLIDING = "full_attention", "sliding_attention"
_PATTERN = 6

_LAYER = "model.decoder.layers.{i}"
_ENCODER = "model.encoder.language_model."
_BLOCK = "model.decoder.self_conditioning"
GEMMA_NAMES: NameTable = {
    "tokens.weight": ("model.decoder.embed_tokens.weight",),
    "norm.weight": ("model.decoder.norm.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.attn_norm.weight": (f"{_LAYER}.input_layernorm.weight",),
    "layers.{i}.attn_out_norm.weight": (f"{_LAYER}.post_attention_layernorm.weight",),
    "layers.{i}.ffn_norm.weight": (f"{_LAYER}.pre_feedforward_layernorm.weight",),
    "layers.{i}.ffn_out_norm.weight": (f"{_LAYER}.post_feedforward_layernorm_1.weight",),
    "layers.{i}.moe_norm.weight": (f"{_LAYER}.pre_feedforward_layernorm_2.weight",),
    "layers.{i}.moe_out_norm.weight": (f"{_LAYER}.post_feedforward_layernorm_2.weight",),
    "layers.{i}.out_norm.weight": (f"{_LAYER}.post_feedforward_layernorm.weight",),
    "layers.{i}.q_norm.weight": (f"{_LAYER}.self_attn.q_norm.weight",),
    "layers.{i}.k_norm.weight": (f"{_LAYER}.self_attn.k_norm.weight",),
    "layers.{i}.qkv.weight": tuple(f"{_LAYER}.self_attn.{part}_proj.weight" for part in "qkv"),
    "layers.{i}.qk.weight": tuple(f"{_LAYER}.self_attn.{part}_proj.weight" for part in "qk"),
    "layers.{i}.o.weight": (f"{_LAYER}.self_attn.o_proj.weight",),
    "layers.{i}.gate_up.weight": (f"{_LAYER}.mlp.gate_proj.weight", f"{_LAYER}.mlp.up_proj.weight"),
    "layers.{i}.down.weight": (f"{_LAYER}.mlp.down_proj.weight",),
    "layers.{i}.moe.router": (f"{_LAYER}.router.proj.weight",),
    "layers.{i}.moe.router_scale": (f"{_LAYER}.router.scale",),
    "layers.{i}.moe.expert_scale": (f"{_LAYER}.router.per_expert_scale",),
    "layers.{i}.moe.gate_up": (f"{_LAYER}.experts.gate_up_proj",),
    "layers.{i}.moe.down": (f"{_LAYER}.experts.down_proj",),
    "layers.{i}.canvas_scalar": (f"{_LAYER}.layer_scalar",),
    "layers.{i}.context_scalar": (f"{_ENCODER}layers.{{i}}.layer_scalar",),
    "self_conditioning.pre_norm.weight": (f"{_BLOCK}.pre_norm.weight",),
    "self_conditioning.gate_up.weight": (f"{_BLOCK}.gate_proj.weight", f"{_BLOCK}.up_proj.weight"),
    "self_conditioning.down.weight": (f"{_BLOCK}.down_proj.weight",),
}


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else {}


def _dialect(config: Mapping[str, Any], name: str) -> Dialect:
    """A canvas of uniformly random tokens follows the text. Its rows predict their own positions, in several steps."""
    canvas_len, vocab_size = size(config, "canvas_length", _CANVAS_LEN), size(_text(config), "vocab_size", _VOCAB_SIZE)
    return Dialect(
        is_shifted=False,
        noise_vocab=vocab_size,
        stop_ids=_STOP_IDS if vocab_size == _VOCAB_SIZE else (),
        decoders=(DecoderName.CANVAS,),
        default=DecoderParams(DecoderName.CANVAS, canvas_len=canvas_len, steps=_STEPS, entropy_bound=0.1),
    )


def _standard_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text network's config under Llama's key names, with the heads and the rotation of window layers."""
    text = _text(config)
    if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh" or text.get("attention_bias"):
        raise CheckpointRefused("config.json: DiffusionGemma with another activation or with biases is not supported")
    if text.get("use_bidirectional_attention") == "all":
        raise CheckpointRefused("config.json: DiffusionGemma with a bidirectional encoder is not supported")
    rope = dict((text.get("rope_parameters") or {}).get(_SLIDING) or {})
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1) != 1:
        raise CheckpointRefused("config.json: rope parameters of sliding layers are not supported")
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", True)))
    full = (text.get("rope_parameters") or {}).get(_FULL)
    theta = {"rope_theta": rope.get("rope_theta", 1e4)}
    return {**text, "rope_parameters": theta, "full_rope_parameters": full, "tie_word_embeddings": tied}


def _experts(config: Mapping[str, Any]) -> MoeConfig:
    return MoeConfig(
        num_experts=int(config["num_experts"]),
        top_k=int(config["top_k_experts"]),
        ffn_dim=int(config["moe_intermediate_size"]),
        activation="gelu_tanh",
    )


def _gemma(config: Mapping[str, Any]) -> GemmaConfig:
    num_layers = int(config["num_hidden_layers"])
    # Without a list every sixth layer and the last one attend to the whole context.
    is_full = [(i + 1) % _PATTERN == 0 or i == num_layers - 1 for i in range(num_layers)]
    kinds = config.get("layer_types") or [_FULL if here else _SLIDING for here in is_full]
    if not set(kinds) <= {_FULL, _SLIDING} or kinds[-1] != _FULL:
        raise CheckpointRefused("config.json: layer_types of DiffusionGemma must end with full_attention")
    full = _full_rope(config)
    heads = _full_heads(config, kinds.index(_FULL))
    return GemmaConfig(
        is_full=tuple(kind == _FULL for kind in kinds),
        window=int(config["sliding_window"]),
        full_head_dim=heads[0],
        full_kv_heads=heads[1],
        full_rope_theta=float(full.get("rope_theta", 1e6)),
        full_partial_rotary=float(full.get("partial_rotary_factor", 0.25)),
        logit_softcap=float(config.get("final_logit_softcapping") or 30.0),
    )


def _full_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    full: Mapping[str, Any] = config.get("full_rope_parameters") or {}
    if full.get("rope_type", "proportional") != "proportional" or full.get("factor", 1) != 1:
        raise CheckpointRefused("config.json: rope parameters of full-attention layers are not supported")
    return full


def _full_heads(config: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Head dimension and KV heads of full-attention layers: own keys, or overrides per layer."""
    overrides = config.get("per_layer_config") or {}
    own = overrides.get(str(layer)) or overrides.get(layer) or {}
    head_dim = config.get("global_head_dim") or own.get("head_dim") or 512
    kv_heads = config.get("num_global_key_value_heads") or own.get("num_key_value_heads")
    return int(head_dim), int(kv_heads or config["num_key_value_heads"])


DIFFUSION_GEMMA = Family(
    name="diffusion-gemma",
    architecture="DiffusionGemmaForBlockDiffusion",
    model_types=("diffusion_gemma",),
    dialect=_dialect,
    qk_norm=True,
    moe=_experts,
    gemma=_gemma,
    standard_config=_standard_config,
    hf_names=GEMMA_NAMES,
    hf_alias=("model.decoder.", _ENCODER),
    hf_unused=("model.encoder.",),
)
