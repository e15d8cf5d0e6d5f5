"""Draft trees of verify rounds against plain Python, and whole rounds with trees against autoregression. No pytest
here: see `kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.backends.cuda import rounds as rounds_module
from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner
from quicksilver.backends.cuda.inflight import Flight
from quicksilver.backends.cuda.kernels.attention import RowTables
from quicksilver.backends.cuda.kernels.head import NUM_NEXT
from quicksilver.backends.cuda.kernels.network import Product
from quicksilver.backends.cuda.round_kernels import RoundState, take_draft
from quicksilver.backends.cuda.rounds import RoundRunner, RoundShape
from quicksilver.backends.cuda.trees import fork_table, keep_way, plant, take_proved, write_tree
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Usage
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.prompt_lookup import lookup, with_lookup
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import Verify
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from tests.support.graph_checks import (
    ROUND_KINDS,
    SMALL_TRUE,
    WIDE_PARTS,
    engine_of,
    expect_true_usage,
    model_of,
    text_of,
)
from tests.support.kernel_checks import expect_close, here

PAGE_SIZE, NUM_PAGES, NUM_TOKENS = 4, 190, 9
RANKS = (0, 1, 3, 2, 2, 6, 7, 1)
"""At every third position of a text, which of a cheating canvas's choices the right token is: 0 the first, 7 none."""


@dataclass(frozen=True)
class Node:
    """A row of a tree."""

    token: int
    before: int
    depth: int


@dataclass
class Case:
    """Six sequences, the third a gap, with everything that a round's forwards could have said of them. Few tokens, so
    that texts recall something and tokens are repeated."""

    canvas_len: int
    tree_rows: int

    def __post_init__(self) -> None:
        size = (6, self.canvas_len)
        self.shape = RoundShape(*size, tree_rows=self.tree_rows)
        self.start, self.text = torch.randint(5, 90, (6,)), torch.randint(0, NUM_TOKENS, (6, 128))
        self.text[::2] %= 2
        self.start[2] = -1
        self.drafts, self.sure = torch.randint(0, NUM_TOKENS, size), torch.rand(size)
        self.drafts[::2] %= 2
        steps = torch.stack([torch.randperm(NUM_TOKENS - 1)[:NUM_NEXT] + 1 for _ in range(6 * self.canvas_len)])
        self.nexts = (self.drafts[..., None] + steps.view(*size, NUM_NEXT)) % NUM_TOKENS
        self.nexts[:, 3, -2:] = -1
        self.chances = torch.rand(*size, NUM_NEXT) * (1 - self.sure[..., None]) / 3
        self.checks = torch.randint(0, NUM_TOKENS, (6, self.tree_rows))
        self.state = RoundState.allocate(self.shape, 128, here().device)
        self.state.position.copy_(self.start)
        self.state.text.copy_(self.text)

    def take_draft(self) -> Tensor:
        """-> the tokens as the host will read them."""
        results = torch.stack((self.drafts.flatten().int(), self.sure.flatten().view(torch.int32))).to(here().device)
        columns = [
            c for i in range(NUM_NEXT) for c in (self.nexts[..., i].int(), self.chances[..., i].view(torch.int32))
        ]
        take_draft(self.state, results, torch.stack([c.flatten() for c in columns]).to(here().device))
        return results[0]

    def recalled(self, b: int, find: Callable[..., Tensor] = with_lookup) -> list[int]:
        said = [*self.text[b, : self.start[b] + 1].tolist(), int(self.drafts[b, 0])]
        return list(find(said, self.drafts[b, 1:], self.sure[b, 1:]).tolist())

    def choices(self, b: int) -> list[list[tuple[int, float]]]:
        """By place: tokens and how likely they are."""
        found, num_recalled = [], len(self.recalled(b, lookup))
        for place, token in enumerate(self.recalled(b), 1):
            own, sure = int(self.drafts[b, place]), float(self.sure[b, place])
            nexts = zip(self.nexts[b, place].tolist(), self.chances[b, place].tolist(), strict=True)
            others = [one for one in ((own, sure), *nexts) if one[0] not in (token, -1)]
            found.append([(token, max(sure, 0.99) if place <= num_recalled else sure), *others])
        return found

    def wanted_tree(self, b: int) -> list[Node]:
        """The likeliest beginnings, one after the other."""
        choices, nodes = self.choices(b), [Node(int(self.drafts[b, 0]), 0, 0)]
        open_ends: list[tuple[float, int, int]] = []

        def look_behind(row: int, chance: float) -> None:
            for token, own in choices[nodes[row].depth] if nodes[row].depth < len(choices) else ():
                open_ends.append((chance * own * (0.1 if token == nodes[row].token else 1), row, token))

        look_behind(0, 1.0)
        while open_ends and len(nodes) < self.tree_rows:
            best = max(open_ends)
            open_ends.remove(best)
            nodes.append(Node(best[2], best[1], nodes[best[1]].depth + 1))
            look_behind(len(nodes) - 1, best[0])
        return nodes

    def agree(self, trees: list[list[Node]]) -> None:
        """Make the forward say what stands on the way to some row of each tree."""
        for b, nodes in enumerate(trees):
            for row in way_to(nodes, random.randrange(len(nodes)))[1:]:
                self.checks[b, nodes[row].before] = nodes[row].token

    def wanted_way(self, b: int, nodes: list[Node]) -> list[int]:
        """Row after row, as long as one is what the row before says."""
        way = [0]
        while True:
            says = int(self.checks[b, way[-1]])
            behind = [row for row, node in enumerate(nodes) if row and node.before == way[-1] and node.token == says]
            if not behind:
                return way
            way += behind


def way_to(nodes: list[Node], row: int) -> list[int]:
    return [0] if row == 0 else [*way_to(nodes, nodes[row].before), row]


def read_tree(tree: Tensor) -> list[Node]:
    """And that the bits of the ways are right."""
    rows = [Node(*column[:3]) for column in tree.T.tolist() if column[2] >= 0]
    lines = [line & 0xFFFFFFFF for line in tree[3].tolist()[: len(rows)]]
    assert lines == [sum(1 << i for i in way_to(rows, row)) for row in range(len(rows))], "other ways"
    return rows


def check_tree(seed: int, canvas_len: int, tree_rows: int) -> None:
    """A tree holds the likeliest beginnings; the commit goes the way that proves right, in the device's state and in
    what the decoder makes of the results; its keys come to stand in the text, and nothing else moves."""
    torch.manual_seed(seed)
    random.seed(seed)
    case, device, live = Case(canvas_len, tree_rows), here().device, (0, 1, 3, 4, 5)
    state, told, pages = case.state, case.take_draft(), torch.randperm(NUM_PAGES)[:180].view(6, 30).int().to(device)
    columns = torch.zeros(8, case.shape.num_verify, dtype=torch.int32, device=device)
    tables = RowTables(*(columns[0],) * 4, pages, PAGE_SIZE, fork_table(case.shape).to(device))
    write_tree(state, columns, columns[0].clone(), tables, 1000, grows=True)
    assert any(len(case.recalled(b, lookup)) > 1 for b in live), "nothing was recalled"
    for b in live:
        assert told.view(6, -1)[b, 1:].tolist() == case.recalled(b), "another draft was recalled than the decoder's"
        assert read_tree(state.tree[b].cpu()) == case.wanted_tree(b), b
    trees = [read_tree(state.tree[b].cpu()) if b != 2 else [Node(0, 0, 0)] for b in range(6)]
    assert bool((state.tree[2, 2] == -1).all()), "a gap has a tree"
    case.agree(trees)
    ways = [case.wanted_way(b, nodes) for b, nodes in enumerate(trees)]
    assert max(len(ways[b]) for b in live) > 2, "nothing drafted is right"
    raw = torch.stack([case.checks.flatten().int() + 1000 * i for i in range(4)]).to(device)
    results = torch.full((4, 6 * canvas_len), -7, dtype=torch.int32, device=device)
    cache = numbered_cache(6 * tree_rows)
    before = cache.k.clone()
    take_proved(state, raw, results, told)
    keep_way(state, tables, cache)
    for b in live:
        commit = case.checks[b, ways[b]].tolist()
        expect_commit(case, b, commit)
        mine = slice(b * canvas_len, (b + 1) * canvas_len)
        assert decided(canvas_len, told[mine].cpu().long(), results[0, mine].cpu().long()) == commit, (b, commit)
        parted = results[:, mine] - results[:1, mine] - 1000 * torch.arange(4, device=device)[:, None]
        assert not bool(parted.any()), "the four numbers of a proposal were parted"
        for at, row in enumerate(ways[b][1:], int(case.start[b]) + 2):
            slot = int(pages[b, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE
            before[:, slot] = before[:, cache.num_paged + b * tree_rows + row]
    assert int(state.position[2]) == -1
    assert torch.equal(cache.k, before), "other keys were kept"
    assert torch.equal(cache.v, -before), "other values were kept"


def expect_commit(case: Case, b: int, commit: list[int]) -> None:
    """In the device's state."""
    state, start = case.state, int(case.start[b]) + 1
    assert (int(state.position[b]), int(state.last[b])) == (start + len(commit), commit[-1]), (b, commit)
    assert state.text[b, start + 1 : start + 1 + len(commit)].tolist() == commit, (b, commit)


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


def check_tree_rows(tree_rows: int) -> None:
    """Rows stand where their tokens would; they write into slots of their own and read those on their way."""
    shape, device, start = RoundShape(2, 16, tree_rows=tree_rows), here().device, 30
    state, nodes = (
        RoundState.allocate(shape, 64, device),
        [Node(40, 0, 0), Node(41, 0, 1), Node(42, 0, 1), Node(43, 2, 2)],
    )
    host = state.on_host(shape)
    host.cells.fill_(-1)
    host.position[0] = start
    plant(host.tree[0].numpy(), [7, 8, 9])
    assert read_tree(host.tree[0]) == [Node(7, 0, 0), Node(8, 0, 1), Node(9, 1, 2)]
    host.tree[0, :, : len(nodes)] = torch.tensor(
        [(n.token, n.before, n.depth, sum(1 << i for i in way_to(nodes, row))) for row, n in enumerate(nodes)]
    ).T
    state.cells.copy_(host.cells)
    columns = torch.full((8, shape.num_verify + 3), -9, dtype=torch.int32, device=device)
    noise_at, forks = columns[0].clone(), fork_table(shape).to(device)
    pages = torch.arange(20, dtype=torch.int32, device=device).flip(0).view(2, 10)
    write_tree(state, columns, noise_at, RowTables(*(columns[0],) * 4, pages, PAGE_SIZE, forks), 1000, False)
    wanted = torch.full_like(columns, -9).cpu()
    wanted[:, : shape.num_verify] = torch.tensor([0, -1, 0, -1, 0, 0, 0, 0])[:, None]
    root = int(pages[0, start // PAGE_SIZE]) * PAGE_SIZE + start % PAGE_SIZE
    for row, node in enumerate(nodes):
        at = start + node.depth
        slot = 1000 + row if row else root
        wanted[:, row] = torch.tensor([node.token, -1, at, slot, at + 1, 0, 0, 0])
        assert int(noise_at[row]) == at + 1
        way = [1000 + i for i in way_to(nodes, row)[1:]]
        assert forks[row, : 1 + len(way)].tolist() == [start + 1, *way]
    assert torch.equal(columns.cpu(), wanted), "other rows"
    assert set(forks[:tree_rows, 0].tolist()) == {start + 1}, "rows of a sequence fork at different positions"
    assert int(forks[tree_rows:, 0].min()) > 1000, "a gap forks"


class Cheat:
    """Drafts from the text to come, wrong where RANKS says so. Made of device work alone, so that a graph can hold
    it."""

    def __init__(self, truth: list[int], num_tokens: int) -> None:
        device = here().device
        self.truth, self.num_tokens = torch.tensor(truth, dtype=torch.int32, device=device), num_tokens
        ranks = [RANKS[at // 3 % len(RANKS)] if at % 3 == 2 else 0 for at in range(len(truth))]
        self.rank = torch.tensor(ranks, device=device)

    def __call__(self, state: RoundState, results: Tensor, runners_up: Tensor | None = None) -> None:
        count = state.draft.shape[1]
        if count > 1 and runners_up is not None:
            at = (state.position[0] + 1 + torch.arange(count, device=results.device)).clamp(0, len(self.truth) - 1)
            right, rank = self.truth[at.long()], self.rank[at.long()]
            others = [(right + 1 + i).remainder(self.num_tokens) for i in range(1 + NUM_NEXT)]
            results[0, 1:count] = torch.where(rank == 0, right, others[0])[1:]
            results[1].view(torch.float32)[1:count] = torch.where(rank == 0, 0.9, 0.4)[1:]
            for i in range(NUM_NEXT):
                runners_up[2 * i, :count] = torch.where(rank == i + 1, right, others[i + 1])
                runners_up[2 * i + 1].view(torch.float32)[:count] = torch.where(rank == 0, 0.01, 0.1)
        take_draft(state, results, runners_up)


def check_rounds_with_trees(
    config: ModelConfig, prompt_len: int, shape: RoundShape, count: int, temperature: float, is_fixed: bool = False
) -> None:
    """Rounds that go on where the canvas's first choice was wrong emit exactly what one causal row at a time emits."""
    model, rng, place = model_of(config), random.Random(1), here()
    product = Product.FIXED if is_fixed else Product.FASTEST
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len, product=product)
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
        runner = Watched(model, PagedCache.allocate(*shape_of, shape.num_verify), 64, limits)
        runner.prepare_rounds([shape])
        return runner

    cheat, usages = Cheat(truth, config.vocab_size), dict[str, Usage]()
    rounds_module.take_draft = cheat
    try:
        engine = engine_of(model, rounds)
        assert text_of(engine, prompts, params(DecoderName.VERIFY), usages) == wanted
    finally:
        rounds_module.take_draft = take_draft
    assert num_won >= count // 16, f"only {num_won} rounds went another way than the draft"
    found = keys_of(engine, pages.pop(), prompt_len + count - 1)
    if place.device == "cuda":
        assert torch.equal(found, kept), "the winners' keys are not those that AR would have written"
    expect_close(found, kept, place.tolerance)
    expect_true_usage(usages["0"], shape, 1)


def keys_of(engine: Engine, pages: list[int], count: int) -> Tensor:
    """Keys and values of a text's first tokens."""
    cache, at = engine.backend.cache, torch.arange(count)
    slots = (torch.tensor(pages)[at // cache.page_size] * cache.page_size + at % cache.page_size).to(cache.k.device)
    return torch.stack((cache.k[:, slots], cache.v[:, slots]))


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for tree_rows in (16, 32):
        yield f"transition trees rows {tree_rows}", lambda n=tree_rows: check_tree_rows(n)
        for seed in range(4):
            yield f"transition trees {tree_rows} {seed}", lambda s=seed, n=tree_rows: check_tree(s, 16, n)
        for kind, config in ROUND_KINDS:
            for temperature in (0.0, 0.8):
                for is_fixed in (False, True) if config in (WIDE_PARTS, SMALL_TRUE) else (False,):
                    shape = RoundShape(1, 16, tree_rows=tree_rows)
                    products = "fixed" if is_fixed else "fastest"
                    yield (
                        f"rounds trees {kind} {tree_rows} {products} at temperature {temperature} equal AR bit for bit",
                        partial(check_rounds_with_trees, config, 40, shape, 120, temperature, is_fixed),
                    )
