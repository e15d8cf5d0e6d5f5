"""The weights of DiffusionGemma in the layout of its kernels: views of the model's tensors, or copies in fp8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quicksilver.backends.cuda.kernels.gemma_router import split_router
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.weights import FP8_MAX
from quicksilver.model.gemma import DiffusionGemma, GemmaLayer

SCHEMES = ("bfloat16", "fp8")


@dataclass(frozen=True, slots=True)
class GemmaLayerWeights:
    attn_gain: Tensor
    qkv: Weight
    head_gains: tuple[Tensor, Tensor]  # of queries and of keys
    o: Weight
    after_gains: tuple[Tensor, Tensor, Tensor]  # of the output of attention, and before the two feed-forwards
    gate_up: Weight
    down: Weight
    router: Tensor
    expert_scale: Tensor  # fp32
    expert_gate_up: Weight  # (experts, 2 ffn, dim)
    expert_down: Weight  # (experts, dim, ffn)
    end_gains: tuple[Tensor, Tensor, Tensor]  # of the outputs of both feed-forwards, and of their sum
    scalars: Tensor  # (2,): context and canvas


@dataclass(frozen=True, slots=True)
class GemmaWeights:
    tokens: Tensor
    embed_scale: Tensor  # (1,) in the model's dtype
    soft_gain: Tensor
    soft_gate_up: Weight
    soft_down: Weight
    layers: tuple[GemmaLayerWeights, ...]
    final_gain: Tensor
    head: Weight


def refusal(model: DiffusionGemma) -> str | None:
    """Why the kernels cannot run this model; None if they can."""
    config, gemma = model.config, model.config.gemma
    assert gemma is not None
    assert config.moe is not None
    if model.tokens.weight.dtype not in (torch.bfloat16, torch.float16):
        return f"weights are {model.tokens.weight.dtype}, not 16-bit"
    if model.weight_format not in (None, *SCHEMES):
        return f"the kernels of DiffusionGemma have no {model.weight_format}"
    sizes = (config.head_dim, gemma.full_head_dim)
    if any(size < 16 or size > 512 or size & (size - 1) for size in sizes):
        return f"a head size among {sizes} is not a power of two from 16 to 512"
    if config.num_heads // min(config.num_kv_heads, gemma.full_kv_heads) > 32:
        return "more than 32 query heads share a KV head"
    if any(width % 16 for width in (config.dim, config.ffn_dim, config.moe.ffn_dim, config.vocab_size)):
        return "a width is not a multiple of 16"
    return None


def collect(model: DiffusionGemma, scheme: str = "bfloat16") -> GemmaWeights:
    """`fp8` quantises every matrix to e4m3 with a scale per output, layer by layer, and drops the 16-bit matrices of
    each layer. Embeddings and head stay in the model: requests with rare sampling options get their logits from them.
    The routers keep 16 bits."""
    layers: list[GemmaLayer] = list(model.layers)  # type: ignore[arg-type]
    block = model.self_conditioning
    return GemmaWeights(
        model.tokens.weight.detach(),
        model._embed_scale.reshape(1),
        block.pre_norm.weight.detach(),
        _take(block.gate_up, scheme),
        _take(block.down, scheme),
        tuple(_layer(layer, scheme) for layer in layers),
        model.norm.weight.detach(),
        weight_of(model.head.weight, scheme),
    )


def weight_of(matrix: Tensor, scheme: str) -> Weight:
    """(..., outputs, inputs) as it is, or in fp8 with a scale per output."""
    w = matrix.detach()
    if scheme == "bfloat16":
        return Weight(w)
    scale = w.abs().amax(-1).float().clamp_min(1e-12) / FP8_MAX
    rounded = torch.empty(w.shape, dtype=torch.float8_e4m3fn, device=w.device)
    # In parts: an fp32 copy of all experts of a layer would take gigabytes.
    for source, target, step in zip(w.split(_PART), rounded.split(_PART), scale.split(_PART), strict=True):
        target.copy_(source.float() / step[..., None])
    return Weight(rounded, None, scale)


# Leading entries (experts, or outputs of a linear) that are quantised at a time.
_PART = 16384


def _take(linear: nn.Linear, scheme: str) -> Weight:
    made = weight_of(linear.weight, scheme)
    if scheme != "bfloat16":
        linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
    return made


def _layer(layer: GemmaLayer, scheme: str) -> GemmaLayerWeights:
    moe = layer.moe
    experts = [weight_of(matrix, scheme) for matrix in (moe.gate_up, moe.down)]
    if scheme != "bfloat16":
        moe.gate_up = nn.Parameter(moe.gate_up.new_empty(0), requires_grad=False)
        moe.down = nn.Parameter(moe.down.new_empty(0), requires_grad=False)
    return GemmaLayerWeights(
        layer.attn_norm.weight.detach(),
        _take(layer.qk if layer.is_full else layer.qkv, scheme),
        (layer.q_norm.weight.detach(), layer.k_norm.weight.detach()),
        _take(layer.o, scheme),
        _gains(layer.attn_out_norm, layer.ffn_norm, layer.moe_norm),
        _take(layer.gate_up, scheme),
        _take(layer.down, scheme),
        split_router(moe.router.detach(), moe.router_scale.detach()),
        moe.expert_scale.detach().float(),
        experts[0],
        experts[1],
        _gains(layer.ffn_out_norm, layer.moe_out_norm, layer.out_norm),
        torch.cat((layer.context_scalar.detach(), layer.canvas_scalar.detach())),
    )


def _gains(first: nn.Module, second: nn.Module, third: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    found = [norm.weight.detach() for norm in (first, second, third)]  # type: ignore[operator]
    return found[0], found[1], found[2]  # type: ignore[return-value]
