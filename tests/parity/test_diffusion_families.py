"""Diffusion families against transformers: the same weights and the same attention mask give the same logits.

transformers has no class for these checkpoints, but their networks are those of autoregressive models. The mask is the
one that the family's own code uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quicksilver.dialect import ContextKind
from quicksilver.model.config import ModelConfig, RopeScaling
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from tests.model.build import random_model, small_config, token_ids
from tests.support.dense_attend import DenseAttend
from tests.support.saved_model import save_model

pytestmark = pytest.mark.parity

State = dict[str, Tensor]
YARN = RopeScaling("yarn", 4.0, 16, attention_factor=1.0)


def shared(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size, "hidden_size": config.dim, "intermediate_size": config.ffn_dim,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim, "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_len, "tie_word_embeddings": config.tied_head,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}, "attn_implementation": "eager",
    }  # fmt: skip


def qwen3(config: ModelConfig) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**shared(config)))


def qwen2(config: ModelConfig) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**shared(config)))


def llama(config: ModelConfig) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**shared(config)))


def ministral3(config: ModelConfig) -> Any:
    from transformers import Ministral3Config, Ministral3ForCausalLM

    rope = {
        "rope_type": "yarn", "rope_theta": config.rope_theta, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": config.query_scale_beta,
    }  # fmt: skip
    return Ministral3ForCausalLM(Ministral3Config(**{**shared(config), "rope_parameters": rope}))


def qwen3_moe(config: ModelConfig) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    moe = config.moe
    assert moe is not None
    experts = {
        "num_experts": moe.num_experts, "num_experts_per_tok": moe.top_k, "moe_intermediate_size": moe.ffn_dim,
        "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1, "experts_implementation": "eager",
    }  # fmt: skip
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shared(config), **experts))


def glm4_moe(config: ModelConfig) -> Any:
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    moe = config.moe
    assert moe is not None
    rope = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": 0.5}
    experts = {
        "n_routed_experts": moe.num_experts, "num_experts_per_tok": moe.top_k, "moe_intermediate_size": moe.ffn_dim,
        "n_shared_experts": 1, "n_group": moe.num_groups, "topk_group": moe.top_groups, "norm_topk_prob": True,
        "routed_scaling_factor": moe.scale, "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": False,
        "experts_implementation": "eager",
    }  # fmt: skip
    return Glm4MoeForCausalLM(Glm4MoeConfig(**{**shared(config), "rope_parameters": rope}, **experts))


def stacked(state: State, config: ModelConfig) -> State:
    """Expert matrices as transformers holds them: one tensor for all experts of a layer."""
    assert config.moe is not None
    out = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        if f"{prefix}.0.up_proj.weight" not in state:
            continue
        parts = {
            kind: torch.stack([state[f"{prefix}.{e}.{kind}_proj.weight"] for e in range(config.moe.num_experts)])
            for kind in ("gate", "up", "down")
        }
        out[f"{prefix}.gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), dim=1)
        out[f"{prefix}.down_proj"] = parts["down"]
    return out


def renamed(*pairs: tuple[str, str]) -> Callable[[State, ModelConfig], State]:
    def rename(state: State, config: ModelConfig) -> State:
        out = {}
        for name, tensor in state.items():
            for ours, theirs in pairs:
                name = name.replace(ours, theirs)
            out[name] = tensor
        return out

    return rename


def from_llada2(state: State, config: ModelConfig) -> State:
    out: State = {}
    for name, tensor in stacked(state, config).items():
        if "query_key_value" in name:
            for part, rows in zip("qkv", tensor.split((config.q_dim, config.kv_dim, config.kv_dim)), strict=True):
                out[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows
        else:
            out[name] = tensor
    names = (
        ("word_embeddings", "embed_tokens"), ("attention.dense", "self_attn.o_proj"),
        ("attention.query_layernorm", "self_attn.q_norm"), ("attention.key_layernorm", "self_attn.k_norm"),
        ("gate.expert_bias", "gate.e_score_correction_bias"),
    )  # fmt: skip
    return renamed(*names)(out, config)


def same(state: State, config: ModelConfig) -> State:
    return state


from_llada = renamed(
    ("model.transformer.ff_out", "lm_head"), ("model.transformer.wte", "model.embed_tokens"),
    ("model.transformer.ln_f", "model.norm"), ("model.transformer.blocks", "model.layers"),
    ("ff_norm", "post_attention_layernorm"), ("attn_norm", "input_layernorm"), ("attn_out", "self_attn.o_proj"),
    (".q_proj", ".self_attn.q_proj"), (".k_proj", ".self_attn.k_proj"), (".v_proj", ".self_attn.v_proj"),
    (".ff_proj", ".mlp.gate_proj"), (".up_proj", ".mlp.up_proj"), (".ff_out", ".mlp.down_proj"),
)  # fmt: skip

FAMILIES: dict[str, tuple[Callable[[ModelConfig], Any], Callable[[State, ModelConfig], State], dict[str, Any]]] = {
    "sdar": (qwen3, same, {"head_dim": 32}),
    "tiny-a2d": (qwen3, same, {"tied_head": True}),
    "efficient-dlm": (qwen3, same, {"num_layers": 3}),
    "i-dlm": (qwen3, same, {}),
    "stable-diffcoder": (llama, same, {"rope_theta": 5e5}),
    "fast-dllm-v2": (qwen2, same, {"tied_head": True}),
    "dream": (qwen2, same, {"rope_theta": 1e6}),
    "nemotron-labs-diffusion": (
        ministral3,
        renamed(("encoder.", "model."), ("diffusion_head", "lm_head")),
        {"rope_scaling": YARN, "query_scale_beta": 0.1},
    ),
    "wedlm-7b": (qwen2, same, {}),
    "wedlm-8b": (qwen3, same, {}),
    "sdar-moe": (qwen3_moe, stacked, {}),
    "llada2": (glm4_moe, from_llada2, {"num_layers": 3}),
    "llada": (llama, from_llada, {"num_kv_heads": 4}),
}


def visible_of(config: ModelConfig, num_tokens: int) -> Tensor:
    index = torch.arange(num_tokens)
    if config.dialect.context is ContextKind.CAUSAL:
        return index[:, None] >= index
    if config.dialect.context is ContextKind.FULL:
        return torch.ones(num_tokens, num_tokens, dtype=torch.bool)
    return index[:, None] // config.dialect.block_len >= index // config.dialect.block_len


def gentle(config: ModelConfig) -> Transformer:
    """Random weights at the scale of trained ones, so that a tolerance of 1e-5 measures rounding only."""
    model = random_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(0.5)
    return model


def pair(family: str, folder: Path) -> tuple[Transformer, Any]:
    """Our network and the native one, with the same weights from one file."""
    native, rename, changes = FAMILIES[family]
    config = small_config(family, **changes)
    save_model(gentle(config), folder)
    model = load_model(folder)
    assert model.config == replace(config, dialect=model.config.dialect)
    theirs = native(config).eval()
    missing, unexpected = theirs.load_state_dict(rename(load_file(folder / "model.safetensors"), config), strict=False)
    assert not unexpected
    assert not [name for name in missing if "lm_head" not in name]
    theirs.tie_weights()
    return model, theirs


def both_logits(model: Transformer, theirs: Any) -> tuple[Tensor, Tensor]:
    ids, num_tokens = token_ids(62), 62
    visible = visible_of(model.config, num_tokens)
    hidden = model(model.embed(ids), torch.arange(num_tokens), DenseAttend(1, visible[None, None]))
    bias = torch.zeros(num_tokens, num_tokens).masked_fill(~visible, torch.finfo(torch.float32).min)
    found = theirs(input_ids=ids[None], attention_mask=bias[None, None].to(model.dtype)).logits[0]
    return model.logits(hidden), found


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_equal_the_native_class_under_the_familys_mask(tmp_path: Path, family: str) -> None:
    ours, found = both_logits(*pair(family, tmp_path / family))
    torch.testing.assert_close(ours, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_in_bf16_differ_by_rounding_only(tmp_path: Path, family: str) -> None:
    """By less than two per cent of their size in the middle row: in a few rows rounding may choose another expert.
    Rotary frequencies stay in fp32."""
    folder = tmp_path / family
    _, theirs = pair(family, folder)
    rotary = theirs.model.rotary_emb
    frequencies = rotary.inv_freq.clone()
    theirs.bfloat16()
    rotary.inv_freq = frequencies
    ours, found = (logits.float() for logits in both_logits(load_model(folder, dtype=torch.bfloat16), theirs))
    assert float(((ours - found).norm(dim=-1) / found.norm(dim=-1)).median()) <= 2e-2
