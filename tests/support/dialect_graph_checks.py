"""Checks of diffusion dialects on CUDA graphs against the eager path. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.core import ConstraintSpec, DecodeParams, Delta, Request
from quicksilver.dialect import ContextKind
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.dialects import DISTINCT, dialect_decoders, tiny_dialect, tiny_experts, tiny_gemma
from tests.support.graph_checks import engine_of, model_of
from tests.support.kernel_checks import here
from tests.support.mask_checks import Watched, WatchedEager, WatchedExecutor
from tests.support.staircase import Staircase

# Families whose networks the kernels can run: layers of Llama, Qwen or routed experts, and a context that is cached.
# Those with a draft adapter on some linears only are refused.
ON_GRAPHS = tuple(
    name
    for name in DISTINCT
    if tiny_gemma(name) is None
    and tiny_dialect(name).context is not ContextKind.FULL
    and not tiny_dialect(name).has_draft_seed
)


# One greedy and one sampled decoder of each kind: Triton's interpreter takes seconds per forward.
LABELS = ("confidence", "confidence sampled", "edit", "edit without a penalty", "verify", "verify sampled", "window")


def dialect_on_graphs(name: str, config: ModelConfig) -> Transformer:
    """Random weights of `config` with the dialect and the experts of a family, and a layer more for each layer without
    experts. The mask token is the last one."""
    config = replace(config, family=name, dialect=tiny_dialect(name, config.vocab_size))
    if (moe := tiny_experts(name)) is not None:
        rotary = 0.5 if moe.num_dense else 1.0
        config = replace(config, moe=moe, num_layers=config.num_layers + moe.num_dense, partial_rotary=rotary)
    return model_of(config, has_adapter=False)


def check_dialect(name: str, config: ModelConfig, max_new_tokens: int) -> None:
    """The decoders of the dialect, for a batch of prompts of several lengths, one of them with a grammar: each
    proposal equals the eager one, and so do the texts in fp32."""
    model = dialect_on_graphs(name, config)
    every = dialect_decoders(name, max_new_tokens)
    if "edit" in every:  # its penalty needs all logits, so that only without it the fused head serves it
        params = every["edit"]
        every["edit without a penalty"] = replace(params, decoder=replace(params.decoder, stutter_penalty=0.0))
    for label in LABELS:
        if label not in every:
            continue
        params = every[label]
        found, backend = _texts(model, params, is_graphed=True)
        assert backend is not None
        assert not backend.faults, f"{label}: {backend.faults}"
        if here().dtype is torch.float32:
            assert found == _texts(model, params, is_graphed=False)[0], label


def _texts(
    model: Transformer, params: DecodeParams, *, is_graphed: bool
) -> tuple[dict[str, list[int]], Watched | None]:
    made: list[Watched] = []

    def make(cache: PagedCache) -> Watched:
        limits = GraphLimits(max_rows=128, max_segments=8, context_len=model.config.context_len)
        executor = WatchedExecutor(model, cache, 64, limits)
        executor.eager, executor.seen_options = WatchedEager(model, cache, 64), set()
        made.append(Watched(executor))
        made[0].faults = []
        return made[0]

    engine = engine_of(model, make if is_graphed else None, page_size=16)
    return _run(engine, params, model.config.vocab_size), made[0] if made else None


def _run(engine: Engine, params: DecodeParams, vocab_size: int) -> dict[str, list[int]]:
    rng, stop = random.Random(2), vocab_size - 2
    length = params.max_new_tokens - 4
    engine.constraints = lambda spec: Staircase(length, stop)
    for i, prompt_len in enumerate((3, 8, 17)):
        prompt = tuple(rng.randrange(vocab_size - 2) for _ in range(prompt_len))
        spec = ConstraintSpec("staircase") if i == 1 else None
        engine.add(Request(str(i), prompt, replace(params, stop_ids=(stop,)), constraint=spec))
    texts: dict[str, list[int]] = {str(i): [] for i in range(3)}
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            texts[event.request_id] += event.token_ids
    return texts
