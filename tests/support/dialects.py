"""One tiny random model per dialect, its decoders, and the uncached `predict` that the oracle needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from quicksilver.core import DecodeParams
from quicksilver.dialect import AUTOREGRESSIVE, ContextKind, Dialect
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.reference import Predict, SoftEmbed
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import CanvasAdapter, attach_canvas
from quicksilver.model.attention import Attend
from quicksilver.model.experts import MoeConfig
from quicksilver.model.families import FAMILIES
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.gemma_config import GemmaConfig
from quicksilver.model.lowrank import LowRank
from quicksilver.model.transformer import Transformer
from tests.support.dense_attend import DenseAttend, dense_gemma
from tests.support.tiny import TINY, decode_params, random_weights

MASK_ID = 95
BLOCK_LEN = {"sdar": 4, "fast-dllm-v2": 8, "nemotron-labs-diffusion": 8, "llada2": 8}
DIALECTS = tuple(name for name, family in FAMILIES.items() if family.dialect({"block_size": 4}, name) != AUTOREGRESSIVE)
CANVAS_LEN = 8


def tiny_dialect(name: str, vocab_size: int = TINY.vocab_size) -> Dialect:
    """In a larger vocabulary the mask token is the last one."""
    length = BLOCK_LEN.get(name, 4)
    keys: dict[str, object] = {"block_size": length, "bd_size": length, "canvas_length": CANVAS_LEN}
    keys |= {"mask_token_id": MASK_ID if vocab_size == TINY.vocab_size else vocab_size - 1}
    dialect = FAMILIES[name].dialect({**keys, "text_config": {"vocab_size": vocab_size}}, name)
    is_full = dialect.context is ContextKind.FULL
    return replace(
        dialect,
        stop_ids=(),
        block_len=12 if is_full else dialect.block_len,
        sub_block_len=4 if dialect.sub_block_len else 0,
    )


def tiny_experts(name: str) -> MoeConfig | None:
    keys = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1}
    return FAMILIES[name].moe({**keys, "top_k_experts": 2, "num_shared_experts": 1, "first_k_dense_replace": 1})


def tiny_gemma(name: str) -> GemmaConfig | None:
    """A window that is shorter than most prompts of the tests."""
    keys = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
    return FAMILIES[name].gemma({**keys, "global_head_dim": 16, "num_global_key_value_heads": 1})


def _distinct() -> tuple[str, ...]:
    """The first family of each dialect; families with experts count separately."""
    found: dict[object, str] = {}
    for name in DIALECTS:
        found.setdefault((tiny_dialect(name), tiny_experts(name)), name)
    return tuple(found.values())


@cache
def dialect_model(name: str, seed: int = 0, vocab_size: int = TINY.vocab_size) -> Transformer:
    """Random weights; with a random draft adapter on the output projections where the dialect drafts with one."""
    dialect = tiny_dialect(name, vocab_size)
    config = replace(TINY, dialect=dialect, moe=tiny_experts(name), gemma=tiny_gemma(name), vocab_size=vocab_size)
    model = random_weights(config, seed)
    if dialect.has_draft_seed:
        attach_canvas(model, output_adapter(model))
    return model.eval().requires_grad_(False)


def output_adapter(model: Transformer, rank: int = 4) -> CanvasAdapter:
    config, generator = model.config, torch.Generator().manual_seed(5)

    def pair() -> LowRank:
        a = torch.randn(rank, config.q_dim, generator=generator) * 0.2
        return LowRank(a, torch.randn(config.dim, rank, generator=generator) * 0.2)

    return CanvasAdapter([{"o": pair()} for _ in range(config.num_layers)], torch.empty(0, config.dim))


def dialect_engine(name: str, config: EngineConfig | None = None) -> Engine:
    return build_engine(dialect_model(name), name, config or EngineConfig(num_pages=64, max_rows=96))


def dialect_decoders(name: str, max_new_tokens: int = 22) -> dict[str, DecodeParams]:
    """Every decoder of a dialect, greedy and sampled, with penalties and several commit rules."""
    shared = {"max_new_tokens": max_new_tokens}
    canvas = {"canvas_len": 8}
    every: dict[str, DecodeParams] = {
        "ar": decode_params("ar", **shared),
        "verify": decode_params("verify", **canvas, **shared),
        "verify sampled": decode_params("verify", **canvas, **shared, temperature=0.9, top_p=0.9, seed=3),
        "confidence": decode_params("confidence", threshold=0.2, **shared),
        "confidence sampled": decode_params("confidence", threshold=0.2, temperature=0.8, seed=4, **shared),
        "confidence static": decode_params("confidence", rule="static", steps=3, **shared),
        "confidence dynamic": decode_params("confidence", rule="dynamic", threshold=0.4, steps=3, **shared),
        "confidence penalised": decode_params(
            "confidence", threshold=0.2, presence_penalty=0.5, repetition_penalty=1.2, **shared
        ),
        "window": decode_params("window", entropy_bound=3.0, **canvas, **shared),
        "window sampled": decode_params("window", entropy_bound=3.0, temperature=0.8, seed=6, **canvas, **shared),
        "edit": decode_params("edit", threshold=0.2, edit_threshold=0.2, **shared),
        "canvas": decode_params("canvas", steps=4, entropy_bound=4.0, **canvas, **shared),
        "canvas sampled": decode_params("canvas", steps=3, temperature=0.9, top_k=9, seed=8, **canvas, **shared),
        "canvas that ends early": decode_params(
            "canvas", steps=7, stop_entropy=9.0, temperature=1.0, repetition_penalty=1.3, **canvas, **shared
        ),
    }
    known = tiny_dialect(name).decoders
    return {label: params for label, params in every.items() if params.decoder.name in known}


def uncached(model: Transformer) -> Predict:
    """`predict` of the reference: the whole text in one dense forward, with an explicit visibility matrix."""
    dialect = model.config.dialect

    @torch.inference_mode()
    def predict(context: Sequence[int], tail: Tail) -> Tensor:
        num_context, num_tail = len(context), len(tail.token_ids)
        total = num_context + num_tail
        visible = torch.ones(total, total).tril().bool()
        if dialect.context is ContextKind.BLOCK:
            block = torch.arange(num_context) // dialect.block_len
            visible[:num_context, :num_context] = block[:, None] >= block
        if not tail.is_causal and not tail.has_causal_canvas:
            visible[num_context:, num_context:] = True
        attend: Attend = DenseAttend(1, visible[None, None])
        positions = torch.arange(total)
        if tail.positions:
            positions[num_context:] = num_context + torch.tensor(tail.positions)
        is_canvas = torch.zeros(total, dtype=torch.bool)
        is_canvas[num_context:] = not tail.is_causal
        x = model.embed(torch.tensor([*context, *tail.token_ids]))
        if isinstance(model, DiffusionGemma):
            soft = torch.zeros(num_tail, x.shape[-1]) if tail.soft is None else tail.soft
            x = model.condition(x, is_canvas, soft)
            attend = dense_gemma(model, num_context, num_tail)
        hidden = model(x, positions, attend, is_canvas)
        rows = torch.tensor(tail.row_of or range(*tail.proposing_rows))
        return model.logits(hidden[num_context - 1 + rows])

    return predict


def soft_embed(model: Transformer) -> SoftEmbed | None:
    return model.soft_embedding if isinstance(model, DiffusionGemma) else None


DISTINCT = _distinct()
