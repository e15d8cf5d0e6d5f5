"""Checks of draft trees against plain Python, and of rounds with trees against autoregression. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.backends.cuda import rounds as rounds_module
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape
from quicksilver.backends.cuda.kernels.attention import RowTables
from quicksilver.backends.cuda.kernels.head import NUM_NEXT
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.round_kernels import RoundState, store_draft
from quicksilver.backends.cuda.trees import accept_tree, copy_accepted_kv, tree_slot_table, write_chain, write_tree
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Usage
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.verify import Verify, lookup
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from tests.support.graph_checks import (
    NANO_WIDTHS,
    ROUND_CONFIGS,
    WIDE,
    engine_of,
    expect_consistent_usage,
    generate_all,
    model_of,
)
from tests.support.kernel_checks import expect_close, here
from tests.support.proposals import confident, with_lookup

PAGE_SIZE, NUM_PAGES, NUM_TOKENS = 4, 190, 9
# At every third position of a text: the rank of the right token among the scripted candidates; 7 is none of them.
RANKS = (0, 1, 3, 2, 2, 6, 7, 1)


@dataclass(frozen=True)
class Node:
    """A row of a draft tree."""

    token: int
    parent: int
    depth: int


@dataclass
class Case:
    """Six sequences, the third unused, with random results of a round's forwards. The vocabulary is small, so that
    prompt lookup finds matches and tokens repeat."""

    canvas_len: int
    tree_rows: int

    def __post_init__(self) -> None:
        size = (6, self.canvas_len)
        self.shape = RoundShape(*size, tree_rows=self.tree_rows)
        self.start, self.text = torch.randint(5, 90, (6,)), torch.randint(0, NUM_TOKENS, (6, 128))
        self.text[::2] %= 2
        self.start[2] = -1
        self.drafts, self.confidence = torch.randint(0, NUM_TOKENS, size), torch.rand(size)
        self.drafts[::2] %= 2
        steps = torch.stack([torch.randperm(NUM_TOKENS - 1)[:NUM_NEXT] + 1 for _ in range(6 * self.canvas_len)])
        self.runners_up = (self.drafts[..., None] + steps.view(*size, NUM_NEXT)) % NUM_TOKENS
        self.runners_up[:, 3, -2:] = -1
        self.probabilities = torch.rand(*size, NUM_NEXT) * (1 - self.confidence[..., None]) / 3
        self.checks = torch.randint(0, NUM_TOKENS, (6, self.tree_rows))
        self.state = RoundState.allocate(self.shape, 128, here().device)
        self.state.position.copy_(self.start)
        self.state.text.copy_(self.text)

    def store_draft(self) -> Tensor:
        """-> the tokens as the host reads them."""
        results = torch.stack((self.drafts.flatten().int(), self.confidence.flatten().view(torch.int32))).to(
            here().device
        )
        columns = [
            c
            for i in range(NUM_NEXT)
            for c in (self.runners_up[..., i].int(), self.probabilities[..., i].view(torch.int32))
        ]
        store_draft(self.state, results, torch.stack([c.flatten() for c in columns]).to(here().device))
        return results[0]

    def looked_up(self, b: int, find: Callable[..., Any] = with_lookup) -> list[int]:
        known_text = [*self.text[b, : self.start[b] + 1].tolist(), int(self.drafts[b, 0])]
        return list(find(known_text, self.drafts[b, 1:].cpu().numpy(), self.confidence[b, 1:].cpu().numpy()).tolist())

    def choices(self, b: int) -> list[list[tuple[int, float]]]:
        """Per position: tokens and their probabilities."""
        found, num_looked_up = [], len(self.looked_up(b, lookup))
        for place, token in enumerate(self.looked_up(b), 1):
            own, confidence = int(self.drafts[b, place]), float(self.confidence[b, place])
            runners_up = zip(self.runners_up[b, place].tolist(), self.probabilities[b, place].tolist(), strict=True)
            others = [one for one in ((own, confidence), *runners_up) if one[0] not in (token, -1)]
            found.append([(token, max(confidence, 0.99) if place <= num_looked_up else confidence), *others])
        return found

    def wanted_tree(self, b: int) -> list[Node]:
        """The likeliest paths, best first."""
        choices, nodes = self.choices(b), [Node(int(self.drafts[b, 0]), 0, 0)]
        frontier: list[tuple[float, int, int]] = []

        def add_children(row: int, probability: float) -> None:
            for token, own in choices[nodes[row].depth] if nodes[row].depth < len(choices) else ():
                frontier.append((probability * own * (0.1 if token == nodes[row].token else 1), row, token))

        add_children(0, 1.0)
        while frontier and len(nodes) < self.tree_rows:
            best = max(frontier)
            frontier.remove(best)
            nodes.append(Node(best[2], best[1], nodes[best[1]].depth + 1))
            add_children(len(nodes) - 1, best[0])
        return nodes

    def agree_with(self, trees: list[list[Node]]) -> None:
        """Let the verify forward agree with the path to a random row of each tree."""
        for b, nodes in enumerate(trees):
            for row in path_to(nodes, random.randrange(len(nodes)))[1:]:
                self.checks[b, nodes[row].parent] = nodes[row].token

    def wanted_path(self, b: int, nodes: list[Node]) -> list[int]:
        """Rows from the root, as long as a child has the token that its parent proposes."""
        path = [0]
        while True:
            token = int(self.checks[b, path[-1]])
            children = [
                row for row, node in enumerate(nodes) if row and node.parent == path[-1] and node.token == token
            ]
            if not children:
                return path
            path += children


def path_to(nodes: list[Node], row: int) -> list[int]:
    return [0] if row == 0 else [*path_to(nodes, nodes[row].parent), row]


def read_tree(tree: Tensor) -> list[Node]:
    """The rows of a tree; also checks the ancestor bitmasks."""
    rows = [Node(*column[:3]) for column in tree.T.tolist() if column[2] >= 0]
    lines = [line & 0xFFFFFFFF for line in tree[3].tolist()[: len(rows)]]
    assert lines == [sum(1 << i for i in path_to(rows, row)) for row in range(len(rows))], "wrong ancestor bitmasks"
    return rows


def check_tree(seed: int, canvas_len: int, tree_rows: int) -> None:
    """A tree holds the likeliest paths. The accepted path is committed, in the device's state and by the decoder on the
    same results. Its KV is copied to the text's pages, and nothing else changes."""
    torch.manual_seed(seed)
    random.seed(seed)
    case, device, live = Case(canvas_len, tree_rows), here().device, (0, 1, 3, 4, 5)
    state, draft_tokens, pages = (
        case.state,
        case.store_draft(),
        torch.randperm(NUM_PAGES)[:180].view(6, 30).int().to(device),
    )
    columns = torch.zeros(8, case.shape.num_verify, dtype=torch.int32, device=device)
    tables = RowTables(*(columns[0],) * 4, pages, PAGE_SIZE, tree_slot_table(case.shape).to(device))
    write_tree(state, columns, columns[0].clone(), tables, 1000, builds=True)
    assert any(len(case.looked_up(b, lookup)) > 1 for b in live), "prompt lookup found no match"
    for b in live:
        assert draft_tokens.view(6, -1)[b, 1:].tolist() == case.looked_up(b), "prompt lookup differs from the decoder's"
        assert read_tree(state.tree[b].cpu()) == case.wanted_tree(b), b
    trees = [read_tree(state.tree[b].cpu()) if b != 2 else [Node(0, 0, 0)] for b in range(6)]
    assert bool((state.tree[2, 2] == -1).all()), "an unused sequence has a tree"
    case.agree_with(trees)
    paths = [case.wanted_path(b, nodes) for b, nodes in enumerate(trees)]
    assert max(len(paths[b]) for b in live) > 2, "no draft is accepted"
    raw = torch.stack([case.checks.flatten().int() + 1000 * i for i in range(4)]).to(device)
    results = torch.full((4, 6 * canvas_len), -7, dtype=torch.int32, device=device)
    cache = numbered_cache(6 * tree_rows)
    parent = cache.k.clone()
    accept_tree(state, raw, results, draft_tokens)
    copy_accepted_kv(state, tables, cache)
    for b in live:
        commit = case.checks[b, paths[b]].tolist()
        expect_commit(case, b, commit)
        mine = slice(b * canvas_len, (b + 1) * canvas_len)
        assert decided(canvas_len, draft_tokens[mine].cpu().long(), results[0, mine].cpu().long()) == commit, (
            b,
            commit,
        )
        offsets = results[:, mine] - results[:1, mine] - 1000 * torch.arange(4, device=device)[:, None]
        assert not bool(offsets.any()), "the four values of a proposal belong to different rows"
        for at, row in enumerate(paths[b][1:], int(case.start[b]) + 2):
            slot = int(pages[b, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE
            parent[:, slot] = parent[:, cache.num_paged + b * tree_rows + row]
    assert int(state.position[2]) == -1
    assert torch.equal(cache.k, parent), "wrong keys were copied"
    assert torch.equal(cache.v, -parent), "wrong values were copied"


def expect_commit(case: Case, b: int, commit: list[int]) -> None:
    """Checks the device's state after a commit."""
    state, start = case.state, int(case.start[b]) + 1
    assert (int(state.position[b]), int(state.last[b])) == (start + len(commit), commit[-1]), (b, commit)
    assert state.text[b, start + 1 : start + 1 + len(commit)].tolist() == commit, (b, commit)


def decided(canvas_len: int, draft: Tensor, checks: Tensor) -> list[int]:
    """The tokens that the decoder commits after the first one, given the two forwards of a round."""
    verify = Verify(DecoderParams(canvas_len=canvas_len))
    canvas = verify.decide(Canvas.blank(canvas_len), confident(draft.tolist())).canvas
    assert canvas is not None
    return list(verify.decide(canvas, confident(checks.tolist())).commit)


def numbered_cache(num_scratch: int) -> PagedCache:
    config = ModelConfig("llama", 2, 32, 64, 2, 1, 8, 70, 64)
    cache = PagedCache.allocate(config, NUM_PAGES, PAGE_SIZE, here().device, torch.float32, num_scratch)
    cache.k.copy_(torch.arange(cache.k.numel()).view_as(cache.k))
    cache.v.copy_(-cache.k)
    return cache


def check_tree_rows(tree_rows: int) -> None:
    """Tree rows have the positions of their tokens, write into scratch slots and read their ancestors' slots."""
    shape, device, start = RoundShape(2, 16, tree_rows=tree_rows), here().device, 30
    state, nodes = (
        RoundState.allocate(shape, 64, device),
        [Node(40, 0, 0), Node(41, 0, 1), Node(42, 0, 1), Node(43, 2, 2)],
    )
    host = state.host_copy(shape)
    host.buffer.fill_(-1)
    host.position[0] = start
    write_chain(host.tree[0].numpy(), [7, 8, 9])
    assert read_tree(host.tree[0]) == [Node(7, 0, 0), Node(8, 0, 1), Node(9, 1, 2)]
    host.tree[0, :, : len(nodes)] = torch.tensor(
        [(n.token, n.parent, n.depth, sum(1 << i for i in path_to(nodes, row))) for row, n in enumerate(nodes)]
    ).T
    state.buffer.copy_(host.buffer)
    columns = torch.full((8, shape.num_verify + 3), -9, dtype=torch.int32, device=device)
    noise_at, tree_slots = columns[0].clone(), tree_slot_table(shape).to(device)
    pages = torch.arange(20, dtype=torch.int32, device=device).flip(0).view(2, 10)
    write_tree(state, columns, noise_at, RowTables(*(columns[0],) * 4, pages, PAGE_SIZE, tree_slots), 1000, False)
    wanted = torch.full_like(columns, -9).cpu()
    wanted[:, : shape.num_verify] = torch.tensor([0, -1, 0, -1, 0, 0, 0, 0])[:, None]
    root = int(pages[0, start // PAGE_SIZE]) * PAGE_SIZE + start % PAGE_SIZE
    for row, node in enumerate(nodes):
        at = start + node.depth
        slot = 1000 + row if row else root
        wanted[:, row] = torch.tensor([node.token, -1, at, slot, at + 1, 0, 0, 0])
        assert int(noise_at[row]) == at + 1
        path = [1000 + i for i in path_to(nodes, row)[1:]]
        assert tree_slots[row, : 1 + len(path)].tolist() == [start + 1, *path]
    assert torch.equal(columns.cpu(), wanted), "wrong rows"
    assert set(tree_slots[:tree_rows, 0].tolist()) == {start + 1}, "rows of a sequence have different start positions"
    assert int(tree_slots[tree_rows:, 0].min()) > 1000, "an unused sequence has a start position"


class ScriptedDrafts:
    """Scripted drafts from the known continuation, wrong where RANKS says so. Device operations only, so that a graph
    can capture them."""

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
        store_draft(state, results, runners_up)


def check_rounds_with_trees(
    config: ModelConfig, prompt_len: int, shape: RoundShape, count: int, temperature: float, is_invariant: bool = False
) -> None:
    """Rounds that accept another candidate than the canvas's first one emit exactly the tokens of autoregression."""
    model, rng, place = model_of(config), random.Random(1), here()
    mode = MatmulMode.BATCH_INVARIANT if is_invariant else MatmulMode.FASTEST
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len, matmul_mode=mode)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(prompt_len)]]

    def params(name: DecoderName) -> DecodeParams:
        return DecodeParams(count, temperature, seed=3, decoder=DecoderParams(name, shape.canvas_len))

    pages: list[list[int]] = []

    class RecordingExecutor(GraphExecutor):
        def run(self, works):  # type: ignore[no-untyped-def]
            pages[:] = [list(works[0].sequence.pages)]
            return super().run(works)

    plain = engine_of(model, lambda cache: RecordingExecutor(model, cache, 64, limits))
    wanted = generate_all(plain, prompts, params(DecoderName.AR))
    kept = keys_of(plain, pages.pop(), prompt_len + count - 1)
    truth, num_changed = prompts[0] + wanted["0"] + [0] * 64, 0

    class Watched(CudaBackend):
        def _deliver(self, in_flight: InFlightRounds, works: list[Work]):  # type: ignore[no-untyped-def, override]
            nonlocal num_changed
            half, end, pages[:] = in_flight.half, in_flight.ends[0], [list(works[0].sequence.pages)]
            outcomes = super()._deliver(in_flight, works)
            if half == 0:
                drafted = enumerate(in_flight.drafts[0], end + 1)
                num_changed += any(token == truth[at] and int(script.rank[at]) for at, token in drafted)
            return outcomes

    def rounds(cache: PagedCache) -> CudaBackend:
        shape_of = (model.config, 512, cache.page_size, place.device, place.dtype)
        backend = Watched(GraphExecutor(model, PagedCache.allocate(*shape_of, shape.num_verify), 64, limits))
        backend.prepare_rounds([shape])
        return backend

    script, usages = ScriptedDrafts(truth, config.vocab_size), dict[str, Usage]()
    rounds_module.store_draft = script
    try:
        engine = engine_of(model, rounds)
        assert generate_all(engine, prompts, params(DecoderName.VERIFY), usages) == wanted
    finally:
        rounds_module.store_draft = store_draft
    assert num_changed >= count // 16, f"only {num_changed} rounds accepted another path than the draft"
    found = keys_of(engine, pages.pop(), prompt_len + count - 1)
    if place.device == "cuda":
        assert torch.equal(found, kept), "the accepted KV differs from that of autoregression"
    expect_close(found, kept, place.tolerance)
    expect_consistent_usage(usages["0"])


def keys_of(engine: Engine, pages: list[int], count: int) -> Tensor:
    """KV of the first `count` tokens of a text."""
    cache, at = engine.backend.cache, torch.arange(count)
    slots = (torch.tensor(pages)[at // cache.page_size] * cache.page_size + at % cache.page_size).to(cache.k.device)
    return torch.stack((cache.k[:, slots], cache.v[:, slots]))


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for tree_rows in (16, 32):
        yield f"acceptance trees rows {tree_rows}", lambda n=tree_rows: check_tree_rows(n)
        for seed in range(4):
            yield f"acceptance trees {tree_rows} {seed}", lambda s=seed, n=tree_rows: check_tree(s, 16, n)
        for kind, config in ROUND_CONFIGS:
            for temperature in (0.0, 0.8):
                for is_invariant in (False, True) if config in (WIDE, NANO_WIDTHS) else (False,):
                    shape = RoundShape(1, 16, tree_rows=tree_rows)
                    mode = "batch-invariant" if is_invariant else "fastest"
                    yield (
                        f"rounds trees {kind} {tree_rows} {mode} at temperature {temperature} equal AR",
                        partial(check_rounds_with_trees, config, 40, shape, 120, temperature, is_invariant),
                    )
