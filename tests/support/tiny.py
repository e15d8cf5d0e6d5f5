"""Tiny random models made on the fly, and the uncached `predict` that the oracle needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, FinishReason, Request
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.reference import Predict
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.assemble import new_transformer
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.canvas_adapters import new_canvas
from tests.support.dense_attend import DenseAttend

TINY = ModelConfig(
    family="llama", num_layers=2, dim=32, ffn_dim=64, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=97,
    context_len=512, tied_head=True,
)  # fmt: skip


@cache
def tiny_model(seed: int = 0, vocab_size: int = TINY.vocab_size) -> Transformer:
    """Random weights with a random canvas adapter."""
    model = random_weights(replace(TINY, vocab_size=vocab_size), seed)
    adapter = new_canvas(model.config, rank=4, max_canvas_len=32, seed=seed)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    attach_canvas(model, adapter)
    return model.eval().requires_grad_(False)


def drafting_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """Random weights of any shape with a canvas adapter of zeros."""
    model = random_weights(config, seed)
    attach_canvas(model, new_canvas(config, rank=4, max_canvas_len=32, seed=0))
    return model.eval().requires_grad_(False)


def random_weights(config: ModelConfig, seed: int) -> Transformer:
    """Random weights with enough variance that greedy text does not loop at once."""
    torch.manual_seed(seed)
    model = new_transformer(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
        elif "scal" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def tiny_engine(config: EngineConfig | None = None, model: Transformer | None = None) -> Engine:
    return build_engine(model or tiny_model(), "tiny", config or EngineConfig(num_pages=64, max_rows=96))


def uncached(model: Transformer) -> Predict:
    """`predict` of the reference: the whole text in one dense forward, with an explicit visibility matrix."""

    @torch.inference_mode()
    def predict(context: Sequence[int], tail: Tail) -> Tensor:
        num_context, num_tail = len(context), len(tail.token_ids)
        total = num_context + num_tail
        visible = torch.ones(total, total).tril().bool()
        if not tail.is_causal:
            visible[num_context:, num_context:] = True
        token_ids = torch.tensor([*context, *tail.token_ids])
        mask_index = torch.full((total,), -1)
        for i, is_masked in enumerate(tail.is_masked):
            mask_index[num_context + i] = i if is_masked else -1
        is_canvas = torch.zeros(total, dtype=torch.bool)
        is_canvas[num_context:] = not tail.is_causal
        attend = DenseAttend(1, visible[None, None])
        hidden = model(model.embed(token_ids, mask_index), torch.arange(total), attend, is_canvas)
        return model.logits(hidden[num_context - 1 :])

    return predict


def decode_params(name: str, **changes: object) -> DecodeParams:
    """Build DecodeParams from flat names. Names of DecoderParams fields go to the decoder."""
    knobs = {key: value for key, value in changes.items() if key in DecoderParams.__slots__}
    rest = {key: value for key, value in changes.items() if key not in knobs}
    return DecodeParams(decoder=DecoderParams(name=DecoderName(name), **knobs), **rest)  # type: ignore[arg-type]


def finish_all(engine: Engine) -> dict[str, list[Delta]]:
    """Step until nothing is left. Returns the deltas by request."""
    deltas: dict[str, list[Delta]] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Delta):
                deltas.setdefault(event.request_id, []).append(event)
    return deltas


def answers(deltas: dict[str, list[Delta]]) -> dict[str, list[int]]:
    return {key: [token for delta in parts for token in delta.token_ids] for key, parts in deltas.items()}


def generate(engine: Engine, prompt: Sequence[int], params: DecodeParams, **fields: object) -> list[int]:
    """Run one request alone to its end. Fails the test if the request failed."""
    engine.add(Request("only", tuple(prompt), params, **fields))  # type: ignore[arg-type]
    deltas = finish_all(engine)["only"]
    assert deltas[-1].finish in (FinishReason.STOP, FinishReason.LENGTH), deltas[-1]
    return answers({"only": deltas})["only"]
