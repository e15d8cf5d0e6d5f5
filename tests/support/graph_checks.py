"""The forward on kernels, its graphs and the rounds that run ahead, against the plain path. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner, Way
from quicksilver.backends.cuda.kernels.network import Product
from quicksilver.backends.cuda.round_kernels import RoundState, take_chosen, take_draft, take_verified
from quicksilver.backends.cuda.rounds import RoundRunner, RoundShape, one_forward
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request, Usage
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.prompt_lookup import with_lookup
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import Verify
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import new_canvas
from quicksilver.model.transformer import Transformer
from tests.support.kernel_checks import FEW_ROWS, KINDS, expect_close, here, random_plan, relative_error

SMALL = ModelConfig("qwen2", 3, 128, 256, 6, 2, 32, 500, 1024, qkv_bias=True, tied_head=True)
SMALL_NORMED = replace(SMALL, family="qwen3", qkv_bias=False, qk_norm=True, tied_head=False)
SMALL_TRUE = ModelConfig("llama", 3, 576, 1536, 9, 3, 64, 500, 1024, tied_head=True)
"""Widths of the 135M model: a layer in two launches, beyond 32 rows the whole network in one."""
WIDE_PARTS = ModelConfig("qwen3", 2, 1152, 640, 4, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
"""Wide enough for the columns that make a row's numbers the same among 16, 32 and 64."""
FEW_LAUNCHES = ModelConfig("qwen3", 2, 1280, 2304, 10, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
"""From one attention to the next in one launch, every program for itself."""
TEAMED = ModelConfig("qwen3", 2, 1024, 5120, 8, 2, 128, 500, 1024, qk_norm=True, tied_head=True)
"""The same by two programs together, and down by sets of four."""
TINIEST = ModelConfig("qwen3", 1, 32, 64, 2, 1, 32, 70, 64, qk_norm=True, tied_head=True)
"""For Triton's interpreter, where every program costs milliseconds."""
TINIEST_WHOLE = replace(TINIEST, family="llama", qk_norm=False)
"""The same in one launch."""


def model_of(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype | None = None, has_adapter: bool = True
) -> Transformer:
    """Random weights, spread enough that greedy text does not loop at once, with a random gated canvas adapter."""
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
        # Smaller than the weights it is added to, as trained ones are: merged copies are rounded as a whole.
        nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 if name.endswith(".A") else 0.2)
    attach_canvas(model, adapter)
    return model.eval().requires_grad_(False)


def check_network(
    config: ModelConfig, seed: int, has_canvas: bool, kinds: tuple[str, ...] = KINDS, most_rows: int = 512
) -> None:
    """Hidden states of a ragged mix equal the plain network's, and so does the cache they leave behind."""
    rng = random.Random(seed)
    model, place = model_of(config, seed), here()
    plan = random_plan(rng, 160, 16, kinds)
    while len(plan.positions) > most_rows:
        plan = random_plan(rng, 160, 16, kinds)
    rows = len(plan.positions)
    token_ids = torch.tensor([rng.randrange(config.vocab_size) for _ in range(rows)])
    mask_index = torch.where(plan.is_canvas & has_canvas, torch.arange(rows) % 15, -1)
    if not has_canvas:
        plan = replace(plan, is_canvas=torch.zeros_like(plan.is_canvas))
    batch = Batch(token_ids, mask_index, plan, torch.arange(rows), has_canvas)
    cache = PagedCache.allocate(config, 160, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = (cache.k.clone(), cache.v.clone())
    other = PagedCache(cache.k.clone(), cache.v.clone(), 16)
    runner = GraphRunner(model, other, 64, GraphLimits(max_rows=512, max_segments=8, context_len=1024))
    for _ in range(2):
        found = model.norm(runner._launch(batch)[:rows])
    plain = plain_forward(model, batch, cache)
    if place.dtype is not torch.bfloat16:
        expect_close(found, plain, 1e-4)
        expect_close(other.k, cache.k, 1e-4)
        return
    exact_cache = PagedCache(before[0].float(), before[1].float(), 16)
    exact = plain_forward(copy.deepcopy(model).float(), batch, exact_cache)
    # Random weights can amplify rounding: what plain torch loses in the same dtype, the kernels may lose too.
    expect_close(found, exact, max(4e-2, 1.5 * relative_error(plain, exact)))
    expect_close(other.k, exact_cache.k, max(4e-2, 1.5 * relative_error(cache.k, exact_cache.k)))


def causal_batch(num_segments: int, rows_each: int, past: int, page_size: int) -> Batch:
    """Segments of causal rows, each behind a cached text of its own on pages of its own; the first is always the
    same."""
    num_pages = -(-(past + rows_each) // page_size)
    rows = torch.arange(num_segments * rows_each)
    segment, row = rows // rows_each, rows % rows_each
    positions, nothing = past + row, torch.zeros_like(row)
    slots = segment * num_pages * page_size + positions
    pages = torch.arange(num_segments * num_pages).view(num_segments, num_pages)
    segments = [Segment(s * rows_each, (s + 1) * rows_each, pages[s]) for s in range(num_segments)]
    plan = RowPlan(positions, slots, nothing.bool(), positions + 1, nothing, nothing, segments)
    return Batch((7 * segment + 3 * row) % 50, nothing - 1, plan, torch.arange(len(row)), False)


def check_lone_rows_need_few_tiles(config: ModelConfig) -> None:
    """One sequence's rows have the same numbers where attention has programs for their tiles alone as where it has
    them for many, and those of the plain network."""
    model, place = model_of(config), here()
    cache = PagedCache.allocate(config, 16, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    runner = GraphRunner(model, cache, 64, GraphLimits(max_rows=32, max_segments=8, context_len=64))
    if not runner.network.is_between(16):  # no chip for it: the tables are all that differs then
        runner.network.is_between = lambda num_rows, has_prompt=False: num_rows <= 32  # type: ignore[method-assign]
    lone, many = causal_batch(1, 5, 20, 16), causal_batch(4, 2, 20, 16)
    assert [runner.key_of(batch)[2] for batch in (lone, many)] == [Way(is_lone=True), Way()]
    runner._launch(many)
    found = runner._launch(lone)[:5].clone()
    runner._run(16, False, Way())
    assert torch.equal(runner._buffers(16)[1].x[:5], found), "other numbers with room for many"
    tolerance = 4e-2 if place.dtype is torch.bfloat16 else 1e-4
    expect_close(model.norm(found), plain_forward(model, lone, cache), tolerance)


def check_fixed_products_ignore_company(config: ModelConfig, counts: tuple[int, ...]) -> None:
    """Where products are fixed a sequence's rows have the same numbers alone and among others, bit for bit on a GPU,
    and those of the plain network."""
    model, place = model_of(config), here()
    cache = PagedCache.allocate(config, 64, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    limits = GraphLimits(max_rows=512, max_segments=32, context_len=256, product=Product.FIXED)
    runner = GraphRunner(model, cache, 64, limits)
    alone = runner._launch(causal_batch(1, 5, 20, 16))[:5].clone()
    for count in counts:
        batch = causal_batch(count, 5, 20, 16)
        found = runner._launch(batch)[: 5 * count].clone()
        if place.device == "cuda":
            assert torch.equal(found[:5], alone), f"other numbers among {count} sequences"
        expect_close(found[:5], alone, place.tolerance)
        plain = plain_forward(model, batch, PagedCache(cache.k.clone(), cache.v.clone(), 16))
        expect_close(model.norm(found), plain, 4e-2 if place.dtype is torch.bfloat16 else 1e-4)


def plain_forward(model: Transformer, batch: Batch, cache: PagedCache) -> Tensor:
    on_device = batch.to(cache.k.device)
    x = model.embed(on_device.token_ids, on_device.mask_index if batch.has_canvas else None)
    is_canvas = on_device.plan.is_canvas if batch.has_canvas else None
    return model(x, on_device.plan.positions, SdpaAttend(on_device.plan, cache), is_canvas)


def engine_of(model: Transformer, make: Callable[[PagedCache], GraphRunner] | None, page_size: int = 16) -> Engine:
    context_len = model.config.context_len
    config = EngineConfig(
        num_pages=512, page_size=page_size, context_len=context_len, spare_pages=10, cuda_graphs=False
    )
    engine = build_engine(model, "checked", config)
    if make is not None:
        engine.backend = make(engine.backend.cache)
    return engine


def text_of(
    engine: Engine, prompts: list[list[int]], params: DecodeParams, usages: dict[str, Usage] | None = None
) -> dict[str, list[int]]:
    """All prompts at once; fails the check if a request failed. What they cost goes into `usages`."""
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


def expect_true_usage(usage: Usage, shape: RoundShape, num_prompts: int) -> None:
    """A round is two forwards, or one behind a first that drafts. One more may give a last single token, and one or two
    the change when another request comes or goes. Every forward commits a token beside what it accepts, but the last
    may have no room for its own."""
    if shape.num_sets:
        assert 1 <= usage.forwards - usage.rounds <= 2 * num_prompts, usage
    else:
        assert abs(usage.forwards - 2 * usage.rounds) <= 1, usage
    assert 0 <= usage.forwards + usage.accepted - usage.completion_tokens <= 1, usage
    assert usage.rounds <= usage.drafted, usage


def check_rounds_equal_plain_autoregression(
    config: ModelConfig, prompt_lens: list[int], shapes: list[RoundShape], count: int, temperature: float
) -> None:
    """Rounds on the device emit exactly what one causal row at a time emits, and they were really used."""
    model, rng, canvas_len = model_of(config), random.Random(1), shapes[0].canvas_len
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    landed = 0

    class Watched(RoundRunner):
        def run(self, works):  # type: ignore[no-untyped-def]
            try:
                return super().run(works)
            except Exception:
                traceback.print_exc(limit=-6)  # the engine reports a failed request by its type alone
                raise

        def _land(self, flight, works):  # type: ignore[no-untyped-def]
            nonlocal landed
            landed += 1
            return super()._land(flight, works)

    def rounds(cache: PagedCache) -> RoundRunner:
        place = (cache.page_size, here().device, here().dtype, max(shape.num_verify for shape in shapes))
        runner = Watched(model, PagedCache.allocate(config, 512, *place), 64, limits)
        runner.prepare_rounds(shapes)
        return runner

    def params(name: DecoderName) -> DecodeParams:
        return DecodeParams(count, temperature, seed=3, decoder=DecoderParams(name, canvas_len))

    wanted = text_of(
        engine_of(model, lambda cache: GraphRunner(model, cache, 64, limits)), prompts, params(DecoderName.AR)
    )
    usages: dict[str, Usage] = {}
    assert text_of(engine_of(model, rounds), prompts, params(DecoderName.VERIFY), usages) == wanted
    assert landed > 0, "no round ran ahead"
    for usage in usages.values():
        expect_true_usage(usage, shapes[0], len(prompts))


def check_transition(seed: int, canvas_len: int) -> None:
    """Draft and acceptance on the device equal the decoder's, for every number of accepted tokens, gaps untouched.

    In texts of two different tokens prompt lookup finds something nearly always.
    """
    torch.manual_seed(seed)
    device, verify = here().device, Verify(DecoderParams(canvas_len=canvas_len))
    state = RoundState.allocate(RoundShape(6, canvas_len), 128, device)
    start, text = torch.randint(5, 90, (6,)), torch.randint(0, 2, (6, 128))
    start[2] = -1
    state.position.copy_(start)
    state.text.copy_(text)
    drafts, checks = torch.randint(0, 2, (2, 6, canvas_len))
    sure = torch.rand(6, canvas_len)
    proposed = torch.stack((drafts.flatten().int(), sure.flatten().view(torch.int32))).to(device)
    take_draft(state, proposed)
    for b in range(6):
        if b != 2:
            said = [*text[b, : start[b] + 1].tolist(), int(drafts[b, 0])]
            drafts[b, 1:] = with_lookup(said, drafts[b, 1:], sure[b, 1:])
    assert torch.equal(proposed[0].cpu().view(6, -1), drafts.int()), "another draft was recalled than the decoder's"
    checks[0, : canvas_len - 1] = drafts[0, 1:]
    take_verified(state, checks.view(1, -1).int().to(device))
    for b in range(6):
        commit: list[int] = []
        canvas: Canvas | None = Canvas.blank(canvas_len)
        for tokens in (drafts[b], checks[b]):
            assert canvas is not None
            ones = torch.ones(canvas_len)
            decision = verify.decide(canvas, Proposal(tokens, ones, ones, ones.bool()))
            commit, canvas = commit + decision.commit, decision.canvas
        wanted = (-1, -1) if b == 2 else (int(start[b]) + len(commit), commit[-1])
        assert (int(state.position[b]), int(state.last[b])) == wanted, (b, wanted)
        if b != 2:
            text[b, start[b] + 1 : start[b] + 1 + len(commit)] = torch.tensor(commit)
    assert torch.equal(state.text.cpu(), text.int()), "the text is not what was committed"


def check_chosen_set(seed: int, canvas_len: int) -> None:
    """Acceptance picks the set behind the last token that agreed, for every length of agreement; every second text
    recalls what follows that set's first token."""
    torch.manual_seed(seed)
    device, num_masks, count, start = here().device, canvas_len - 1, canvas_len + 1, 12
    state = RoundState.allocate(RoundShape(count, canvas_len), 64, device)
    state.position.copy_(torch.arange(count) + start)
    state.position[-1] = -1
    state.draft.copy_(torch.randint(0, 9, (count, canvas_len)))
    verified, text = torch.randint(10, 20, (count, canvas_len)), torch.randint(100, 900, (count, 64))
    sets = torch.randint(20, 99, (count, canvas_len, num_masks))
    for accepted in range(canvas_len):
        verified[accepted, :accepted] = state.draft[accepted, :accepted].cpu()
        said = torch.cat((text[accepted, : start + accepted + 1], verified[accepted, : accepted + 1]))
        if accepted % 2:
            text[accepted, :4], text[accepted, 4] = said[-4:], sets[accepted, accepted, 0]
    state.text.copy_(text)
    old = state.draft.clone()
    proposed = torch.cat((verified.flatten(), sets.flatten())).int()
    take_chosen(state, torch.stack((proposed, torch.zeros_like(proposed))).to(device))
    for accepted in range(canvas_len):
        assert int(state.position[accepted]) == accepted + start + accepted + 1
        assert int(state.last[accepted]) == int(verified[accepted, accepted])
        said = torch.cat((text[accepted, : start + accepted + 1], verified[accepted, : accepted + 1]))
        wanted = with_lookup(said.tolist(), sets[accepted, accepted], torch.zeros(num_masks))
        assert torch.equal(wanted, sets[accepted, accepted]) == (accepted % 2 == 0 or num_masks == 1)
        assert state.draft[accepted, :num_masks].tolist() == wanted.tolist()
    assert torch.equal(state.draft[-1], old[-1]), "a gap was touched"


ROUND_KINDS = (
    ("whole", SMALL), ("parts", WIDE_PARTS), ("true", SMALL_TRUE), ("between", FEW_LAUNCHES), ("teams", TEAMED),
)  # fmt: skip


def are_alike(config: ModelConfig, shape: RoundShape) -> bool:
    """Whether a round in one forward has so few rows that AR has the same kernels."""
    return not shape.num_sets or shape.num_proposals <= 32 or config in (SMALL, WIDE_PARTS)


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for seed in range(3):
        yield f"transition {seed}", lambda s=seed: check_transition(s, 16)
        yield f"transition with sets {seed}", lambda s=seed: check_chosen_set(s, 8)
        for config in (SMALL, SMALL_NORMED, SMALL_TRUE):
            for has_canvas in (False, True):
                name = f"network {config.family} {seed} canvas={has_canvas}"
                kinds = KINDS if seed else FEW_ROWS
                yield name, lambda c=config, s=seed, h=has_canvas, k=kinds: check_network(c, s, h, k)
        for rows, has_canvas in ((16, False), (16, True), (32, False), (32, True)):
            name = f"network between {seed} rows={rows} canvas={has_canvas}"
            yield name, lambda s=seed, h=has_canvas, n=rows: check_network(FEW_LAUNCHES, s, h, FEW_ROWS, n)
            name = f"network teams {seed} rows={rows} canvas={has_canvas}"
            yield name, lambda s=seed, h=has_canvas, n=rows: check_network(TEAMED, s, h, FEW_ROWS, n)
    for kind, config in (("between", FEW_LAUNCHES), ("teams", TEAMED)):
        yield f"network {kind} lone rows need few tiles", lambda c=config: check_lone_rows_need_few_tiles(c)
    for config in (SMALL_TRUE, WIDE_PARTS):
        name = f"fixed products ignore company {config.family}"
        yield name, lambda c=config: check_fixed_products_ignore_company(c, (3, 6, 12, 13, 25))
    # Prompts of two whose first forward falls into the same bucket with and without canvases (64), and into another
    # (16 and 64), where equality rests on rows that ignore their number.
    two = [RoundShape(1, 16), RoundShape(2, 16)]
    trees = [RoundShape(1, 16, tree_rows=32), RoundShape(2, 16, tree_rows=16)]
    for kind, config in ROUND_KINDS:
        for lens, shapes in (
            ([40], two),
            ([20, 13], two),
            ([20, 13], trees),
            ([40], [one_forward(1, 8)]),
            ([20, 13], [one_forward(2, 4)]),
        ):
            if not are_alike(config, shapes[0]):
                continue
            for temperature in (0.0, 0.8):
                name = f"rounds {kind} {shapes[-1]} of {lens} at temperature {temperature} equal AR bit for bit"
                yield (
                    name,
                    lambda c=config, n=lens, s=shapes, t=temperature: check_rounds_equal_plain_autoregression(
                        c, n, s, 120, t
                    ),
                )
