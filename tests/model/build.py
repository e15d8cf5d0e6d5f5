"""Small random networks, row plans and tiny checkpoint files for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from quicksilver.model.assemble import new_transformer
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.families import FAMILIES
from quicksilver.model.transformer import Transformer
from tests.support.dense_attend import DenseAttend, dense_gemma

PAGE_SIZE = 4
GEMMA_KEYS = {
    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9,
    "global_head_dim": 32, "num_global_key_value_heads": 1,
}  # fmt: skip

SMALL = ModelConfig(
    family="llama", num_layers=2, dim=64, ffn_dim=96, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=128,
    context_len=256, rope_theta=1e4, norm_eps=1e-5,
)  # fmt: skip


def small_config(family: str = "llama", **changes: object) -> ModelConfig:
    """A family with experts has four of them, with the options of its router; one with a dialect a block of four."""
    record = FAMILIES[family]
    keys = {"block_size": 4, "bd_size": 4, "mask_token_id": 127, "canvas_length": 8, "text_config": {"vocab_size": 128}}
    options = {"qkv_bias": record.qkv_bias, "qk_norm": record.qk_norm, "dialect": record.dialect(keys, family)}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1}
    experts |= {"num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5}
    options["moe"] = record.moe({**experts, "top_k_experts": 2})
    options["gemma"] = record.gemma(GEMMA_KEYS)
    if family == "llada2":
        options["partial_rotary"] = 0.5
    return replace(SMALL, family=family, **(options | changes))  # type: ignore[arg-type]


def random_model(config: ModelConfig = SMALL, seed: int = 0) -> Transformer:
    """Weights large enough that rows differ clearly, biases and norms included."""
    torch.manual_seed(seed)
    model = new_transformer(config)
    for name, parameter in model.named_parameters():
        is_gain = "norm" in name or "scal" in name
        torch.nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.1 if is_gain else 0.2)
    return model.eval().requires_grad_(False)


def token_ids(num: int, seed: int = 1, vocab_size: int = SMALL.vocab_size) -> Tensor:
    return torch.randint(0, vocab_size, (num,), generator=torch.Generator().manual_seed(seed))


def run_dense(model: Transformer, ids: Tensor) -> Tensor:
    """Hidden states of one causal sequence, without a cache."""
    with torch.inference_mode():
        attend = DenseAttend(1, is_causal=True) if model.config.gemma is None else dense_gemma(model, len(ids), 0)
        return model(model.embed(ids), torch.arange(len(ids)), attend)


def causal_plan(positions: Sequence[Tensor], pages: Sequence[Tensor]) -> RowPlan:
    """Rows of several sequences, each a run of positions written to and read from that sequence's pages."""
    rows = torch.cat(list(positions))
    slots = [p[where // PAGE_SIZE] * PAGE_SIZE + where % PAGE_SIZE for where, p in zip(positions, pages, strict=True)]
    ends = torch.tensor([len(p) for p in positions]).cumsum(0).tolist()
    segments = [Segment(end - len(where), end, p) for end, where, p in zip(ends, positions, pages, strict=True)]
    none = torch.zeros_like(rows)
    return RowPlan(rows, torch.cat(slots), none.bool(), rows + 1, none, none, segments)


def run_plan(model: Transformer, ids: Tensor, plan: RowPlan, cache: PagedCache) -> Tensor:
    with torch.inference_mode():
        return model(model.embed(ids), plan.positions, SdpaAttend(plan, cache), plan.is_canvas)


def new_cache(config: ModelConfig, num_pages: int = 64, dtype: torch.dtype = torch.float32) -> PagedCache:
    return PagedCache.allocate(config, num_pages, PAGE_SIZE, "cpu", dtype)


def write_gguf(
    path: Path, config: ModelConfig, kind: str = "F32", kinds: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """A GGUF file of random tensors, matrices stored as `kind`, or as `kinds` says of them by name. Returns the
    values as the gguf package reads them."""
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_block_count(config.num_layers)
    writer.add_embedding_length(config.dim)
    writer.add_feed_forward_length(config.ffn_dim)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_context_length(config.context_len)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "é"])
    values = {}
    for name, shape in gguf_shapes(config).items():
        tensor_kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, kind) if len(shape) > 1 else "F32"]
        stored = stored_tensor(generator, shape, tensor_kind)
        writer.add_tensor(name, stored, raw_dtype=tensor_kind)
        values[name] = gguf.quants.dequantize(stored, tensor_kind).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def gguf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, config.dim), "output_norm.weight": (config.dim,),
    }  # fmt: skip
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab_size, config.dim)
    for i in range(config.num_layers):
        layer = {
            "attn_norm.weight": (config.dim,), "ffn_norm.weight": (config.dim,),
            "attn_q.weight": (config.q_dim, config.dim), "attn_k.weight": (config.kv_dim, config.dim),
            "attn_v.weight": (config.kv_dim, config.dim), "attn_output.weight": (config.dim, config.q_dim),
            "ffn_gate.weight": (config.ffn_dim, config.dim), "ffn_up.weight": (config.ffn_dim, config.dim),
            "ffn_down.weight": (config.dim, config.ffn_dim),
        }  # fmt: skip
        if config.qkv_bias:
            layer |= {"attn_q.bias": (config.q_dim,), "attn_k.bias": (config.kv_dim,), "attn_v.bias": (config.kv_dim,)}
        if config.qk_norm:
            layer |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def stored_tensor(
    generator: np.random.Generator, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType
) -> np.ndarray:
    values = generator.normal(0, 0.2, shape).astype(np.float32)
    if kind.name not in ("Q4_K", "Q6_K"):
        return gguf.quants.quantize(values, kind)
    # The package reads K-quants but does not write them: any bytes are valid blocks once their scales are finite.
    block_items, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (shape[0], shape[1] // block_items, block_bytes), dtype=np.uint8)
    at = slice(0, 4) if kind.name == "Q4_K" else slice(block_bytes - 2, block_bytes)
    blocks[..., at] = np.frombuffer(np.full(2, 0.01, np.float16).tobytes()[: at.stop - at.start], np.uint8)
    return blocks.reshape(shape[0], -1)
