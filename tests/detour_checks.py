"""Detours of verify rounds against plain Python, and whole rounds with detours that win against autoregression. No
pytest here: see `kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Usage
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.recall import SURE, recall
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import Verify
from quicksilver.engine import rounds as rounds_module
from quicksilver.engine.detours import fork_table, keep_winner, write_detours
from quicksilver.engine.engine import Engine
from quicksilver.engine.flight import DETOUR_LEN, Flight
from quicksilver.engine.graphs import GraphLimits, GraphRunner
from quicksilver.engine.rounds import RoundRunner, RoundShape
from quicksilver.engine.sequence import Work
from quicksilver.engine.transition import RoundState, take_draft, take_verified
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels.attention import RowTables
from tests.graph_checks import SMALL, SMALL_TRUE, WIDE_PARTS, engine_of, expect_true_usage, model_of, text_of
from tests.kernel_checks import expect_close, here

PAGE_SIZE, NUM_PAGES, NUM_TOKENS = 4, 190, 5
RANKS = (0, 1, 3, 2, 2, 3, 3, 1)
"""At every fourth position of a text, where a cheating draft has the right token: first, second or third choice, or
nowhere."""


@dataclass
class Case:
    """Six sequences, the third a gap, with everything that a round's forwards could have said of them. Few tokens, so
    that texts recall something, drafts agree and detours win."""

    canvas_len: int
    num_detours: int

    def __post_init__(self) -> None:
        size = (6, self.canvas_len)
        self.shape = RoundShape(*size, num_detours=self.num_detours)
        self.start, self.text = torch.randint(5, 90, (6,)), torch.randint(0, NUM_TOKENS, (6, 128))
        self.text[::2] %= 2
        self.start[2] = -1
        self.drafts, self.sure = torch.randint(0, NUM_TOKENS, size), torch.rand(size)
        steps = torch.stack([torch.randperm(NUM_TOKENS - 1)[:2] + 1 for _ in range(6 * self.canvas_len)])
        self.nexts = (self.drafts[..., None] + steps.view(*size, 2)) % NUM_TOKENS
        self.chances = torch.rand(*size, 2) * (1 - self.sure[..., None]) / 2
        self.checks = torch.randint(0, NUM_TOKENS, size)
        self.detour_checks = torch.randint(0, NUM_TOKENS, (6, self.num_detours, DETOUR_LEN))
        self.state = RoundState.allocate(self.shape, 128, here().device)
        self.state.position.copy_(self.start)
        self.state.text.copy_(self.text)

    def take_draft(self) -> Tensor:
        """-> the tokens as the host will read them."""
        results = torch.stack((self.drafts.flatten().int(), self.sure.flatten().view(torch.int32))).to(here().device)
        columns = [c for i in range(2) for c in (self.nexts[..., i].int(), self.chances[..., i].view(torch.int32))]
        take_draft(self.state, results, torch.stack([c.flatten() for c in columns]).to(here().device))
        return results[0]

    def recalled(self, b: int) -> list[int]:
        said = [*self.text[b, : self.start[b] + 1].tolist(), int(self.drafts[b, 0])]
        return list(recall(said, self.drafts[b, 1:], self.sure[b, 1:]).tolist())

    def wanted_detours(self, b: int) -> set[tuple[int, int]]:
        scored, reach = [], 1.0
        for place, token in enumerate(self.recalled(b)):
            own, sure = int(self.drafts[b, place + 1]), float(self.sure[b, place + 1])
            nexts, chances = self.nexts[b, place + 1].tolist(), self.chances[b, place + 1].tolist()
            choices = [(own, sure), *zip(nexts, chances, strict=True)]
            scored += [(reach * chance, place, other) for other, chance in choices if other != token]
            reach *= sure if own == token else SURE
        return {(place, token) for _, place, token in sorted(scored, reverse=True)[: self.num_detours]}

    def agree(self, drafts: list[list[int]], detours: list[list[tuple[int, int]]]) -> None:
        """Make verification agree with drafts and detours here and there."""
        for b in range(6):
            d = random.randrange(self.num_detours)
            place, token = detours[b][d]
            if b == 2 or place < 0:
                continue
            self.checks[b, :place] = torch.tensor(drafts[b][:place])
            self.checks[b, place] = token
            same = drafts[b][place + 1 : place + 1 + random.randrange(DETOUR_LEN + 1)]
            self.detour_checks[b, d, : len(same)] = torch.tensor(same)

    def wanted_commit(self, b: int, draft: list[int], detours: list[tuple[int, int]]) -> list[int]:
        """One row after the other, along the detour where there is one."""
        checks, place = self.checks[b].tolist(), 0
        while place < len(draft) and checks[place] == draft[place]:
            place += 1
        commit = checks[: place + 1]
        if (place, commit[-1]) not in detours:
            return commit
        for i, says in enumerate(self.detour_checks[b, detours.index((place, commit[-1]))].tolist()):
            if place + i > self.canvas_len - 2:
                break
            commit.append(says)
            if place + 1 + i >= len(draft) or says != draft[place + 1 + i]:
                break
        return commit


def check_detours(seed: int, canvas_len: int, num_detours: int) -> None:
    """The detours chosen are the likeliest; the commit goes along the one that wins, in the device's state and in what
    the decoder makes of the results; its keys come to stand in the text, and nothing else moves."""
    torch.manual_seed(seed)
    random.seed(seed)
    case, device = Case(canvas_len, num_detours), here().device
    state, told = case.state, case.take_draft()
    drafts = [case.recalled(b) if b != 2 else case.drafts[b, 1:].tolist() for b in range(6)]
    assert told.view(6, -1)[:, 1:].tolist() == drafts, "another draft was recalled than the decoder's"
    detours = [[(int(p), int(t)) for p, t in state.detours[b].tolist()] for b in range(6)]
    for b in (0, 1, 3, 4, 5):
        assert {d for d in detours[b] if d[0] >= 0} == case.wanted_detours(b), (b, detours[b], case.wanted_detours(b))
    assert detours[2] == [(-1, -1)] * num_detours, "a gap has detours"
    case.agree(drafts, detours)
    cache = numbered_cache(6 * num_detours * DETOUR_LEN)
    pages = torch.randperm(NUM_PAGES)[:180].view(6, 30).int().to(device)
    numbers = torch.cat((case.checks.flatten(), case.detour_checks.flatten())).int()
    results = torch.stack((numbers, *(torch.arange(len(numbers)).int() + i for i in range(3)))).to(device)
    before, tables = cache.k.clone(), RowTables(told, told, told, told, pages, PAGE_SIZE)
    keep_winner(state, results[0], tables, cache)
    expect_kept(case, before, cache, pages, (drafts, detours))
    take_verified(state, results, told)
    num_longer = 0
    for b in (0, 1, 3, 4, 5):
        start, commit = int(case.start[b]) + 1, case.wanted_commit(b, drafts[b], detours[b])
        num_longer += len(commit) > 1 + plain_agreement(case, b, drafts[b])
        assert (int(state.position[b]), int(state.last[b])) == (start + len(commit), commit[-1]), (b, commit)
        assert state.text[b, start + 1 : start + 1 + len(commit)].tolist() == commit, (b, commit)
        mine = slice(b * canvas_len, (b + 1) * canvas_len)
        assert decided(canvas_len, told[mine].cpu().long(), results[0, mine].cpu().long()) == commit, (b, commit)
        rows = results[1:, mine].cpu() - results[1:2, mine].cpu()
        assert rows.tolist() == [[i] * canvas_len for i in range(3)], "the four numbers of a proposal were parted"
    assert int(state.position[2]) == -1
    assert num_longer > 0, "no detour won"


def plain_agreement(case: Case, b: int, draft: list[int]) -> int:
    return next((i for i, token in enumerate(draft) if int(case.checks[b, i]) != token), len(draft))


def decided(canvas_len: int, draft: Tensor, checks: Tensor) -> list[int]:
    """What the decoder commits behind the first token when it is shown these two halves of a round."""
    verify, ones = Verify(DecoderParams(canvas_len=canvas_len)), torch.ones(canvas_len)
    canvas = verify.decide(Canvas.blank(canvas_len), Proposal(draft, ones, ones, ones.bool())).canvas
    assert canvas is not None
    return list(verify.decide(canvas, Proposal(checks, ones, ones, ones.bool())).commit)


def numbered_cache(num_scratch: int) -> PagedCache:
    config = ModelConfig("llama", 2, 32, 64, 2, 1, 8, 70, 64)
    cache = PagedCache.allocate(config, NUM_PAGES, PAGE_SIZE, here().device, torch.float32, num_scratch)
    cache.k.copy_(torch.arange(cache.k.numel()).view_as(cache.k))
    cache.v.copy_(-cache.k)
    return cache


def expect_kept(case: Case, before: Tensor, cache: PagedCache, pages: Tensor, given: tuple[list, list]) -> None:  # type: ignore[type-arg]
    """`before` and the winners' rows copied by hand equal the cache."""
    for b, (draft, detours) in enumerate(zip(*given, strict=True)):
        place = plain_agreement(case, b, draft)
        way = (place, int(case.checks[b, place])) if b != 2 else (-1, -1)
        if way not in detours or way[0] < 0:
            continue
        for i in range(len(case.wanted_commit(b, draft, detours)) - place - 1):
            at = int(case.start[b]) + 2 + place + i
            source = cache.num_paged + (b * case.num_detours + detours.index(way)) * DETOUR_LEN + i
            before[:, int(pages[b, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE] = before[:, source]
    assert torch.equal(cache.k, before), "other keys were kept"
    assert torch.equal(cache.v, -before), "other values were kept"


def check_detour_rows(canvas_len: int, num_detours: int) -> None:
    """Rows of detours hold the detour's token and the draft's behind it, at their positions, in slots of their own."""
    shape, device, start = RoundShape(2, canvas_len, num_detours=num_detours), here().device, 30
    state = RoundState.allocate(shape, 64, device)
    state.position[0] = start
    state.draft.copy_(100 + torch.arange(2 * canvas_len).view(2, -1))
    places = [d * (canvas_len - 2) // max(num_detours - 1, 1) for d in range(num_detours)]
    state.detours[0] = torch.tensor([(place, 7 + d) for d, place in enumerate(places)])
    state.detours[0, -1] = -1
    columns = torch.full((8, shape.num_proposals + 3), -9, dtype=torch.int32, device=device)
    noise_at, forks = columns[0].clone(), fork_table(shape, 3 + 2 * num_detours, 1000).to(device)
    write_detours(state, columns, noise_at, forks)
    wanted = torch.full_like(columns, -9).cpu()
    for c in range(2 * num_detours * DETOUR_LEN):
        d, i = c // DETOUR_LEN, c % DETOUR_LEN
        place = places[d] if d < num_detours - 1 else canvas_len
        at, row = start + 1 + place + i, [0, -1, 0, -1, 0, 0, 0, 0]
        if place + i <= canvas_len - 2:
            row = [7 + d if i == 0 else 100 + place + i, -1, at, 1000 + c, at + 1, 0, 0, 0]
            assert int(forks[3 + d, 0]) == start + 1 + place
            assert int(forks[3 + d, 1]) == 1000 + d * DETOUR_LEN
        assert int(noise_at[2 * canvas_len + c]) == row[2] + 1
        wanted[:, 2 * canvas_len + c] = torch.tensor(row)
    assert torch.equal(columns.cpu(), wanted), "other rows"


class Cheat:
    """Drafts from the text to come, wrong where RANKS says so. Made of device work alone, so that a graph can hold
    it."""

    def __init__(self, truth: list[int], num_tokens: int) -> None:
        device = here().device
        self.truth, self.num_tokens = torch.tensor(truth, dtype=torch.int32, device=device), num_tokens
        ranks = [RANKS[at // 4 % len(RANKS)] if at % 4 == 3 else 0 for at in range(len(truth))]
        self.rank = torch.tensor(ranks, device=device)

    def __call__(self, state: RoundState, results: Tensor, runners_up: Tensor | None = None) -> None:
        count = state.draft.shape[1]
        if count > 1 and runners_up is not None:
            at = (state.position[0] + 1 + torch.arange(count, device=results.device)).clamp(0, len(self.truth) - 1)
            right, rank = self.truth[at.long()], self.rank[at.long()]
            others = [(right + 1 + i).remainder(self.num_tokens) for i in range(3)]
            results[0, 1:count] = torch.where(rank == 0, right, others[0])[1:]
            results[1].view(torch.float32)[1:count] = 0.8
            for i in range(2):
                runners_up[2 * i, :count] = torch.where(rank == i + 1, right, others[i + 1])
                runners_up[2 * i + 1].view(torch.float32)[:count] = torch.where(rank == 0, 0.01, 0.1)
        take_draft(state, results, runners_up)


def check_rounds_with_detours(
    config: ModelConfig, prompt_len: int, shape: RoundShape, count: int, temperature: float
) -> None:
    """Rounds whose detours win emit exactly what one causal row at a time emits."""
    model, rng, place = model_of(config), random.Random(1), here()
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(prompt_len)]]

    def params(name: DecoderName) -> DecodeParams:
        return DecodeParams(count, temperature, seed=3, decoder=DecoderParams(name, shape.canvas_len))

    pages: list[list[int]] = []

    class Alone(GraphRunner):
        def run(self, works):  # type: ignore[no-untyped-def]
            pages[:] = [list(works[0].sequence.pages)]
            return super().run(works)

    plain = engine_of(model, lambda cache: Alone(model, cache, 64, limits))
    wanted = text_of(plain, prompts, params(DecoderName.AR))
    kept = keys_of(plain, pages.pop(), prompt_len + count - 1)
    truth, num_won = prompts[0] + wanted["0"] + [0] * 64, 0

    class Watched(RoundRunner):
        def _land(self, flight: Flight, works: list[Work]):  # type: ignore[no-untyped-def, override]
            nonlocal num_won
            half, end, pages[:] = flight.half, flight.ends[0], [list(works[0].sequence.pages)]
            outcomes = super()._land(flight, works)
            if half == 0:
                drafted = enumerate(flight.drafts[0], end + 1)
                num_won += any(token == truth[at] and int(cheat.rank[at]) for at, token in drafted)
            return outcomes

    def rounds(cache: PagedCache) -> RoundRunner:
        shape_of = (model.config, 512, cache.page_size, place.device, place.dtype)
        runner = Watched(model, PagedCache.allocate(*shape_of, 4 * shape.num_beside), 64, limits)
        runner.prepare_rounds([shape])
        return runner

    cheat, usages = Cheat(truth, config.vocab_size), dict[str, Usage]()
    rounds_module.take_draft = cheat
    try:
        engine = engine_of(model, rounds)
        assert text_of(engine, prompts, params(DecoderName.VERIFY), usages) == wanted
    finally:
        rounds_module.take_draft = take_draft
    assert num_won >= count // 16, f"only {num_won} detours won"
    found = keys_of(engine, pages.pop(), prompt_len + count - 1)
    if place.device == "cuda":
        assert torch.equal(found, kept), "the winners' keys are not those that AR would have written"
    expect_close(found, kept, place.tolerance)
    expect_true_usage(usages["0"], shape, 1)


def keys_of(engine: Engine, pages: list[int], count: int) -> Tensor:
    """Keys and values of a text's first tokens."""
    cache, at = engine.runner.cache, torch.arange(count)
    slots = (torch.tensor(pages)[at // cache.page_size] * cache.page_size + at % cache.page_size).to(cache.k.device)
    return torch.stack((cache.k[:, slots], cache.v[:, slots]))


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for num_detours in (4, 12):
        yield f"transition detours rows {num_detours}", lambda n=num_detours: check_detour_rows(16, n)
        for seed in range(3):
            yield f"transition detours {num_detours} {seed}", lambda s=seed, n=num_detours: check_detours(s, 16, n)
        for kind, config in (("whole", SMALL), ("parts", WIDE_PARTS), ("true", SMALL_TRUE)):
            for temperature in (0.0, 0.8):
                shape = RoundShape(1, 16, num_detours=num_detours)
                yield (
                    f"rounds detours {kind} {num_detours} at temperature {temperature} equal AR bit for bit",
                    lambda c=config, s=shape, t=temperature: check_rounds_with_detours(c, 40, s, 120, t),
                )
