"""Networks of diffusion checkpoints at their real and at tiny shapes, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from quicksilver.model.assemble import empty_transformer, finish, set_parameter
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer

_QWEN3 = {
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1e6, "model_type": "sdar",
    "architectures": ["SDARForCausalLM"], "block_size": 4, "mask_token_id": 151669,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar-4b": {**_QWEN3, "hidden_size": 2560, "intermediate_size": 9728},
    "sdar-8b": {**_QWEN3, "hidden_size": 4096, "intermediate_size": 12288},
    "llada2-mini": {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "num_hidden_layers": 20,
        "hidden_size": 2048, "intermediate_size": 5120, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5, "vocab_size": 157184, "max_position_embeddings": 32768, "rope_theta": 6e5,
        "partial_rotary_factor": 0.5, "block_size": 32, "mask_token_id": 156895,
    },
    "sdar-30b-a3b": {
        **_QWEN3, "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"], "num_hidden_layers": 48,
        "hidden_size": 2048, "intermediate_size": 6144, "num_key_value_heads": 4, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    },
    "diffusion-gemma": {
        "model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"], "canvas_length": 256,
        "text_config": {
            "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
            "num_global_key_value_heads": 2, "sliding_window": 1024, "max_position_embeddings": 262144,
            "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
        },
    },
}  # fmt: skip
# Smaller values of the same keys, for tests and trials without a GPU.
_TINY = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "num_experts": 8,
    "num_experts_per_tok": 2, "top_k_experts": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1,
    "vocab_size": 128, "mask_token_id": 127, "max_position_embeddings": 1024, "sliding_window": 16, "canvas_length": 16,
}  # fmt: skip


def config_of(name: str, *, is_tiny: bool) -> ModelConfig:
    keys = _shrunk(CONFIGS[name]) if is_tiny else CONFIGS[name]
    return ModelConfig.from_hf(keys, name)


def _shrunk(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: _shrunk(value) if isinstance(value, dict) else _TINY.get(key, value) for key, value in keys.items()}


def random_network(config: ModelConfig, device: str, dtype: torch.dtype) -> Transformer:
    """Filled tensor by tensor on the device. Gains are one, so that activations stay finite in any depth."""
    model = empty_transformer(config)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        tensor = torch.ones(parameter.shape, device=device, dtype=dtype)
        if parameter.dim() > 1:
            tensor.normal_(0.0, 0.02, generator=generator)
        set_parameter(model, name, tensor.float() if name.endswith("moe.bias") else tensor)
    return finish(model, device)
