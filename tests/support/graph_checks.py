"""Checks of the network on CUDA kernels, of graphs and of verify rounds against the eager path. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from quicksilver.backends.base import Backend
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor, GraphVariant
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.round_kernels import RoundState, accept_verified, store_draft
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request, Usage
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.verify import Verify
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.canvas_adapters import new_canvas
from tests.support.kernel_checks import FEW_ROWS, KINDS, expect_close, here, random_plan, relative_error
from tests.support.proposals import confident, with_lookup

SMALL = ModelConfig("qwen2", 3, 128, 256, 6, 2, 32, 500, 1024, qkv_bias=True, tied_head=True)
SMALL_NORMED = replace(SMALL, family="qwen3", qkv_bias=False, qk_norm=True, tied_head=False)
# Widths of the 135M model: layer-fused up to 32 rows.
NANO_WIDTHS = ModelConfig("llama", 3, 576, 1536, 9, 3, 64, 500, 1024, tied_head=True)
# Wide enough for column blocks that are batch-invariant over 16, 32 and 64 rows.
WIDE = ModelConfig("qwen3", 2, 1152, 640, 4, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
# Layer-fused with single CTAs.
LAYER_FUSED = ModelConfig("qwen3", 2, 1280, 2304, 10, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
# Layer-fused with clusters of two CTAs, and down with split K over four.
CLUSTERED = ModelConfig("qwen3", 2, 1024, 5120, 8, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
# For Triton's interpreter, where every program takes milliseconds.
TINIEST = ModelConfig("qwen3", 1, 32, 64, 2, 1, 32, 70, 64, qk_norm=True, tied_head=True)
# The same without norms of queries and keys.
TINIEST_PLAIN = replace(TINIEST, family="llama", qk_norm=False)


def model_of(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype | None = None, has_adapter: bool = True
) -> Transformer:
    """Random weights with enough spread that greedy text does not loop at once, and a random gated canvas adapter."""
    torch.manual_seed(seed)
    place = here()
    model = Transformer(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.6 / config.dim**0.5)
    model = model.to(place.device, dtype or place.dtype)
    if not has_adapter:
        return model.eval().requires_grad_(False)
    adapter = new_canvas(config, 8, 32, seed)
    for name, parameter in adapter.named_parameters():
        # Smaller than the weights, as trained adapters are: merged weights are rounded once.
        nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 if name.endswith(".A") else 0.2)
    attach_canvas(model, adapter)
    return model.eval().requires_grad_(False)


def check_network(
    config: ModelConfig,
    seed: int,
    has_canvas: bool,
    kinds: tuple[str, ...] = KINDS,
    most_rows: int = 512,
    graph_rows: int = 512,
    has_adapter: bool = True,
) -> None:
    """Hidden states of a ragged batch, and the cache afterwards, equal those of the eager network. Batches of more than
    `graph_rows` run without a graph."""
    rng = random.Random(seed)
    model, place = model_of(config, seed, has_adapter=has_adapter), here()
    plan = random_plan(rng, 160, 16, kinds)
    while len(plan.positions) > most_rows:
        plan = random_plan(rng, 160, 16, kinds)
    rows = len(plan.positions)
    token_ids = torch.tensor([rng.randrange(config.vocab_size) for _ in range(rows)])
    mask_index = torch.where(plan.is_canvas & has_canvas, torch.arange(rows) % 15, -1)
    if not has_canvas:
        plan = replace(plan, is_canvas=torch.zeros_like(plan.is_canvas))
    # A forward without a graph copies the proposing rows to the buffer of the graphs.
    batch = Batch(token_ids, mask_index, plan, torch.arange(min(rows, graph_rows)), has_canvas)
    cache = PagedCache.allocate(config, 160, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = (cache.k.clone(), cache.v.clone())
    other = PagedCache(cache.k.clone(), cache.v.clone(), 16)
    executor = GraphExecutor(model, other, 64, GraphLimits(graph_rows, 8, 1024, prompt_rows=512))
    for _ in range(2):
        found = model.norm(executor.launch(batch)[:rows])
    plain = eager_forward(model, batch, cache)
    if place.dtype is not torch.bfloat16:
        expect_close(found, plain, 1e-4)
        expect_close(other.k, cache.k, 1e-4)
        return
    exact_cache = PagedCache(before[0].float(), before[1].float(), 16)
    exact = eager_forward(copy.deepcopy(model).float(), batch, exact_cache)
    # Random weights can amplify rounding: the kernels may lose as much as eager torch does in the same dtype.
    expect_close(found, exact, max(4e-2, 1.5 * relative_error(plain, exact)))
    expect_close(other.k, exact_cache.k, max(4e-2, 1.5 * relative_error(cache.k, exact_cache.k)))


def causal_batch(num_segments: int, rows_each: int, past: int, page_size: int) -> Batch:
    """Segments of causal rows, each after its own cached text on its own pages. The first segment is always the
    same."""
    num_pages = -(-(past + rows_each) // page_size)
    rows = torch.arange(num_segments * rows_each)
    segment, row = rows // rows_each, rows % rows_each
    positions, zeros = past + row, torch.zeros_like(row)
    slots = segment * num_pages * page_size + positions
    pages = torch.arange(num_segments * num_pages).view(num_segments, num_pages)
    segments = [Segment(s * rows_each, (s + 1) * rows_each, pages[s]) for s in range(num_segments)]
    plan = RowPlan(positions, slots, zeros.bool(), positions + 1, zeros, zeros, segments)
    return Batch((7 * segment + 3 * row) % 50, zeros - 1, plan, torch.arange(len(row)), False)


def check_single_sequence_variant(config: ModelConfig) -> None:
    """The single-sequence variant gives the same bits as the general one, and the values of the eager network."""
    model, place = model_of(config), here()
    cache = PagedCache.allocate(config, 16, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    executor = GraphExecutor(model, cache, 64, GraphLimits(max_rows=32, max_segments=8, context_len=64))
    if not executor.network.is_layer_fused(16):  # without such a GPU only the tables differ
        executor.network.is_layer_fused = lambda num_rows, has_prompt=False: num_rows <= 32  # type: ignore[method-assign]
    single, many = causal_batch(1, 5, 20, 16), causal_batch(4, 2, 20, 16)
    assert [executor.key_of(batch)[2] for batch in (single, many)] == [GraphVariant(is_single=True), GraphVariant()]
    executor.launch(many)
    found = executor.launch(single)[:5].clone()
    executor.run_network(16, False, GraphVariant())
    assert torch.equal(executor.row_buffers(16)[1].x[:5], found), "the general variant gives other values"
    tolerance = 4e-2 if place.dtype is torch.bfloat16 else 1e-4
    expect_close(model.norm(found), eager_forward(model, single, cache), tolerance)


def check_batch_invariant_matmul(config: ModelConfig, counts: tuple[int, ...], has_adapter: bool = True) -> None:
    """In batch-invariant mode the rows of a sequence have the same values alone and in a batch, bit-identical on a GPU,
    and those of the eager network."""
    model, place = model_of(config, has_adapter=has_adapter), here()
    cache = PagedCache.allocate(config, 2 * max(counts), 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    limits = GraphLimits(512, max(counts), 256, matmul_mode=MatmulMode.BATCH_INVARIANT)
    executor = GraphExecutor(model, cache, 64, limits)
    alone = executor.launch(causal_batch(1, 5, 20, 16))[:5].clone()
    for count in counts:
        batch = causal_batch(count, 5, 20, 16)
        found = executor.launch(batch)[: 5 * count].clone()
        if place.device == "cuda":
            assert torch.equal(found[:5], alone), f"other values in a batch of {count} sequences"
        expect_close(found[:5], alone, place.tolerance)
        plain = eager_forward(model, batch, PagedCache(cache.k.clone(), cache.v.clone(), 16))
        if place.dtype is not torch.bfloat16:
            expect_close(model.norm(found), plain, 1e-4)
            continue
        # As in `check_network`: the kernels may lose as much as eager torch does in the same dtype.
        exact = eager_forward(copy.deepcopy(model).float(), batch, PagedCache(cache.k.float(), cache.v.float(), 16))
        expect_close(model.norm(found), exact, max(4e-2, 1.5 * relative_error(plain, exact)))


def check_prompts_without_graph(config: ModelConfig, prompt_lens: list[int], max_rows: int) -> None:
    """Prompts with more rows than any graph have the answers of the eager backend, with and without log-probabilities,
    which take their logits from another path. For float32 only."""
    model, rng = model_of(config), random.Random(2)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    limits = GraphLimits(max_rows, 8, config.context_len, prompt_rows=4 * sum(prompt_lens))
    executor = GraphExecutor(model, PagedCache.allocate(config, 512, 16, here().device, here().dtype), 64, limits)
    engine = engine_of(model, None)
    fast = Engine(executor, engine.info, replace(engine.config, max_rows=max_rows, prompt_rows=limits.prompt_rows))
    for logprobs in (None, 1):
        params = DecodeParams(3, logprobs=logprobs, decoder=DecoderParams(DecoderName.AR, 1))
        assert generate_all(fast, prompts, params) == generate_all(engine, prompts, params)


def check_canvas_beyond_the_context(config: ModelConfig) -> None:
    """An answer that ends with the context, by a canvas whose last rows lie more than a page behind the context, is
    that of the eager backend. For float32 only."""
    model, rng = model_of(config), random.Random(4)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(config.context_len - 4)]]
    limits = GraphLimits(32, 8, config.context_len, prompt_rows=2 * config.context_len)
    executor = GraphExecutor(model, PagedCache.allocate(config, 512, 16, here().device, here().dtype), 64, limits)
    # Beyond the table the kernels would read other memory, which may happen to change no token.
    assert len(executor.network.angles) >= config.context_len + 32
    engine = engine_of(model, None)
    fast = Engine(executor, engine.info, engine.config)
    params = DecodeParams(4, decoder=DecoderParams(DecoderName.CONFIDENCE, 32, threshold=0.2))
    assert generate_all(fast, prompts, params) == generate_all(engine, prompts, params)


def eager_forward(model: Transformer, batch: Batch, cache: PagedCache) -> Tensor:
    on_device = batch.to(cache.k.device)
    x = model.embed(on_device.token_ids, on_device.mask_index if batch.has_canvas else None)
    is_canvas = on_device.plan.is_canvas if batch.has_canvas else None
    return model(x, on_device.plan.positions, SdpaAttend(on_device.plan, cache), is_canvas)


def engine_of(model: Transformer, make: Callable[[PagedCache], Backend] | None, page_size: int = 16) -> Engine:
    context_len = model.config.context_len
    config = EngineConfig(
        num_pages=512, page_size=page_size, context_len=context_len, spare_pages=10, cuda_graphs=False
    )
    engine = build_engine(model, "checked", config)
    if make is not None:
        engine.backend = make(engine.backend.cache)  # type: ignore[attr-defined]
    return engine


def generate_all(
    engine: Engine, prompts: list[list[int]], params: DecodeParams, usages: dict[str, Usage] | None = None
) -> dict[str, list[int]]:
    """Generate for all prompts at once; fails if a request failed. `usages` receives their usage."""
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), tuple(prompt), params))
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            answers[event.request_id] += event.token_ids
            if usages is not None and event.usage is not None:
                usages[event.request_id] = event.usage
    return answers


def expect_consistent_usage(usage: Usage) -> None:
    """A round is two forwards; one more may produce a last single token. Every forward commits one token in addition to
    the accepted ones, except possibly the last."""
    assert abs(usage.forwards - 2 * usage.rounds) <= 1, usage
    assert 0 <= usage.forwards + usage.accepted - usage.completion_tokens <= 1, usage
    assert usage.rounds <= usage.drafted, usage


def check_rounds_equal_autoregression(
    config: ModelConfig, prompt_lens: list[int], shapes: list[RoundShape], count: int, temperature: float
) -> None:
    """Device-side rounds emit exactly the tokens of autoregression, and they were used."""
    model, rng, canvas_len = model_of(config), random.Random(1), shapes[0].canvas_len
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    delivered = 0

    class Watched(CudaBackend):
        def run(self, works):  # type: ignore[no-untyped-def]
            try:
                return super().run(works)
            except Exception:
                traceback.print_exc(limit=-6)  # the engine reports a failed request by its type alone
                raise

        def _deliver(self, in_flight: InFlightRounds, works):  # type: ignore[no-untyped-def]
            nonlocal delivered
            delivered += 1
            return super()._deliver(in_flight, works)

    def rounds(cache: PagedCache) -> CudaBackend:
        place = (cache.page_size, here().device, here().dtype, max(shape.num_verify for shape in shapes))
        backend = Watched(GraphExecutor(model, PagedCache.allocate(config, 512, *place), 64, limits))
        backend.prepare_rounds(shapes)
        return backend

    def params(name: DecoderName) -> DecodeParams:
        return DecodeParams(count, temperature, seed=3, decoder=DecoderParams(name, canvas_len))

    wanted = generate_all(
        engine_of(model, lambda cache: GraphExecutor(model, cache, 64, limits)), prompts, params(DecoderName.AR)
    )
    usages: dict[str, Usage] = {}
    assert generate_all(engine_of(model, rounds), prompts, params(DecoderName.VERIFY), usages) == wanted
    assert delivered > 0, "no round ran ahead"
    for usage in usages.values():
        expect_consistent_usage(usage)


def check_acceptance(seed: int, canvas_len: int) -> None:
    """Draft and acceptance on the device equal the decoder's for every acceptance length; unused sequences do not
    change. Texts over two tokens nearly always have a prompt-lookup match."""
    torch.manual_seed(seed)
    device, verify = here().device, Verify(DecoderParams(canvas_len=canvas_len))
    state = RoundState.allocate(RoundShape(6, canvas_len), 128, device)
    start, text = torch.randint(5, 90, (6,)), torch.randint(0, 2, (6, 128))
    start[2] = -1
    state.position.copy_(start)
    state.text.copy_(text)
    drafts, checks = torch.randint(0, 2, (2, 6, canvas_len))
    confidence = torch.rand(6, canvas_len)
    proposed = torch.stack((drafts.flatten().int(), confidence.flatten().view(torch.int32))).to(device)
    store_draft(state, proposed)
    for b in range(6):
        if b != 2:
            known_text = [*text[b, : start[b] + 1].tolist(), int(drafts[b, 0])]
            draft = with_lookup(known_text, drafts[b, 1:].numpy(), confidence[b, 1:].numpy())
            drafts[b, 1:] = torch.from_numpy(draft)
    assert torch.equal(proposed[0].cpu().view(6, -1), drafts.int()), "prompt lookup differs from the decoder's"
    checks[0, : canvas_len - 1] = drafts[0, 1:]
    accept_verified(state, checks.view(1, -1).int().to(device))
    for b in range(6):
        commit: list[int] = []
        canvas: Canvas | None = Canvas.blank(canvas_len)
        for tokens in (drafts[b], checks[b]):
            assert canvas is not None
            decision = verify.decide(canvas, confident(tokens.tolist()))
            commit, canvas = commit + decision.commit, decision.canvas
        wanted = (-1, -1) if b == 2 else (int(start[b]) + len(commit), commit[-1])
        assert (int(state.position[b]), int(state.last[b])) == wanted, (b, wanted)
        if b != 2:
            text[b, start[b] + 1 : start[b] + 1 + len(commit)] = torch.tensor(commit)
    assert torch.equal(state.text.cpu(), text.int()), "the text differs from the committed tokens"


ROUND_CONFIGS = (
    ("small", SMALL), ("wide", WIDE), ("nano", NANO_WIDTHS), ("fused", LAYER_FUSED), ("cluster", CLUSTERED),
)  # fmt: skip


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for seed in range(3):
        yield f"acceptance {seed}", lambda s=seed: check_acceptance(s, 16)
        for config in (SMALL, SMALL_NORMED, NANO_WIDTHS):
            for has_canvas in (False, True):
                name = f"network {config.family} {seed} canvas={has_canvas}"
                kinds = KINDS if seed else FEW_ROWS
                yield name, lambda c=config, s=seed, h=has_canvas, k=kinds: check_network(c, s, h, k)
        for rows, has_canvas in ((16, False), (16, True), (32, False), (32, True)):
            name = f"network fused {seed} rows={rows} canvas={has_canvas}"
            yield name, lambda s=seed, h=has_canvas, n=rows: check_network(LAYER_FUSED, s, h, FEW_ROWS, n)
            name = f"network cluster {seed} rows={rows} canvas={has_canvas}"
            yield name, lambda s=seed, h=has_canvas, n=rows: check_network(CLUSTERED, s, h, FEW_ROWS, n)
    for kind, config in (("fused", LAYER_FUSED), ("cluster", CLUSTERED)):
        yield f"network {kind} single-sequence variant", lambda c=config: check_single_sequence_variant(c)
    for config in (SMALL, WIDE):
        name = f"prompts without a graph {config.family}"
        yield name, lambda c=config: check_network(c, 1, True, graph_rows=16)
    for config in (NANO_WIDTHS, WIDE):
        name = f"batch-invariant matmul {config.family}"
        yield name, lambda c=config: check_batch_invariant_matmul(c, (3, 6, 12, 13, 25, 32, 60))
    # Two prompts whose first forward is in the same bucket with and without canvases (64), and in another (16 and 64).
    # In the second case equality depends on batch invariance.
    chains = [RoundShape(1, 16), RoundShape(2, 16)]
    trees = [RoundShape(1, 16, tree_rows=32), RoundShape(2, 16, tree_rows=16)]
    for kind, config in ROUND_CONFIGS:
        for lens, shapes in (([40], chains), ([20, 13], chains), ([20, 13], trees)):
            for temperature in (0.0, 0.8):
                drafts = "draft trees of" if shapes is trees else "single drafts of"
                yield (
                    f"rounds {kind} {drafts} {lens} at temperature {temperature} equal AR",
                    partial(check_rounds_equal_autoregression, config, lens, shapes, 120, temperature),
                )
