"""Checks of kernels against plain torch on random ragged batches. No pytest here: the same checks run in the tests, on
a GPU or in Triton's interpreter, and from `benchmarks/gpu_check.py` on machines with only torch and Triton."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels import head as head_kernel
from quicksilver.backends.cuda.kernels.attention import (
    MAX_TREE_DEPTH,
    AttentionShape,
    AttentionWorkspace,
    RowTables,
    attend_paged,
    cut_tiles,
)
from quicksilver.backends.cuda.kernels.head import Draws, HeadRows, HeadWorkspace, propose_rows, read_results
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots, angle_table, rotate_and_write
from quicksilver.backends.cuda.kernels.row_kernels import embed, norm_rows, swiglu_rows
from quicksilver.diffusion.sample import ProposalTensors, SampleRows, propose, unpack_bitmask
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import RMSNorm, Rope, rotate
from tests.support.triton_attend import TritonAttend


@dataclass(frozen=True, slots=True)
class Place:
    """Device and dtype of the checks: interpreted on the CPU in fp32, or on a GPU in bf16."""

    device: str
    dtype: torch.dtype

    @property
    def tolerance(self) -> float:
        return 2e-2 if self.dtype is torch.bfloat16 else 2e-5

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def here() -> Place:
    if torch.cuda.is_available():
        return Place("cuda", torch.bfloat16)
    return Place("cpu", torch.float32)


def expect_close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Compares by the relative error of the norm, which ignores bf16 noise in small entries. NaN fails."""
    error = relative_error(found, wanted)
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))


def shape_config(heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig("llama", 2, 64, 128, heads, kv_heads, head_dim, 97, 4096)


KINDS = ("one", "chunk", "canvas", "canvas", "branches", "long")
FEW_ROWS = ("one", "canvas", "branches")


def random_plan(rng: random.Random, num_pages: int, page_size: int, kinds: tuple[str, ...] = KINDS) -> RowPlan:
    """Segments of every kind, on scattered pages: single causal rows, prompt chunks, canvases, branches."""
    free = list(range(num_pages))
    rng.shuffle(free)
    columns: dict[str, list[int]] = {name: [] for name in ("positions", "slots", "canvas", "prefix", "start", "end")}
    segments = []
    for kind in rng.sample(kinds, min(5, len(kinds))):
        past = rng.randrange(1, 150) if kind != "long" else rng.randrange(300, 700)
        context = {"chunk": rng.randrange(20, 90), "long": 3}.get(kind, 1)
        end = past + context
        first_row = len(columns["positions"])
        pages = [free.pop() for _ in range(-(-end // page_size))]

        def add(position: int, slot: int, prefix: int, span: tuple[int, int], is_canvas: bool) -> None:
            values = (position, slot, int(is_canvas), prefix, *span)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)

        for position in range(past, end):
            slot = pages[position // page_size] * page_size + position % page_size
            add(position, slot, position + 1, (0, 0), False)
        tail = len(columns["positions"])
        if kind in ("canvas", "long"):
            size = rng.choice([3, 15, 31])
            for i in range(size):
                add(end + i, -1, end, (tail, tail + size), True)
        if kind == "branches":
            for length in (4, 2):
                start = len(columns["positions"])
                for i in range(length):
                    add(end + i, -1, end, (start, start + i + 1), False)
        segments.append(Segment(first_row, len(columns["positions"]), torch.tensor(pages)))
    t = {name: torch.tensor(values) for name, values in columns.items()}
    return RowPlan(t["positions"], t["slots"], t["canvas"].bool(), t["prefix"], t["start"], t["end"], segments)


def check_attention(
    seed: int, heads: tuple[int, int, int], splits: int, block_m: int, *, is_decode: bool = False
) -> None:
    """The paged kernel equals SDPA on the same plan, and both write the same cache. The reference runs on the CPU in
    fp32, so that a sanitizer sees only our kernels."""
    torch.manual_seed(seed)
    place, config, page_size = here(), shape_config(*heads), 16
    plan = random_plan(random.Random(seed), 160, page_size)
    cache = PagedCache.allocate(config, 160, page_size, "cpu", torch.float32)
    cache.k.copy_(torch.randn(cache.k.shape).to(place.dtype))
    cache.v.copy_(torch.randn(cache.v.shape).to(place.dtype))
    found_in = [part.to(place.device, place.dtype) for part in (cache.k.clone(), cache.v.clone())]
    other = PagedCache(found_in[0], found_in[1], page_size)
    rows = len(plan.positions)
    q = torch.randn(rows, config.num_heads, config.head_dim).to(place.dtype)
    k, v = (torch.randn(rows, config.num_kv_heads, config.head_dim).to(place.dtype) for _ in range(2))
    wanted = SdpaAttend(plan, cache)(1, q.float(), k.float(), v.float())
    given = [part.to(place.device) for part in (q, k, v)]
    attend = TritonAttend(plan.to(place.device), other, splits=splits, block_m=block_m, is_decode=is_decode)
    found = attend(1, *given)
    expect_close(found.cpu(), wanted, place.tolerance)
    assert torch.equal(attend(1, *given), found), "a second launch differs from the first"
    assert torch.equal(cache.k, other.k.float().cpu()), "keys differ from the reference"
    assert torch.equal(cache.v, other.v.float().cpu()), "values differ from the reference"


def check_attention_is_batch_invariant(seed: int, block_m: int = 64, *, is_decode: bool = False) -> None:
    """A segment alone gives the same bits as in a batch."""
    torch.manual_seed(seed)
    place, config, page_size = here(), shape_config(6, 2, 32), 16
    plan = random_plan(random.Random(seed), 160, page_size).to(place.device)
    cache = PagedCache.allocate(config, 160, page_size, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    rows = len(plan.positions)
    q = place.normal(rows, config.num_heads, config.head_dim)
    k, v = (place.normal(rows, config.num_kv_heads, config.head_dim) for _ in range(2))
    together = TritonAttend(plan, cache, 4, block_m, is_decode=is_decode)(0, q, k, v)
    for segment in plan.segments:
        part = slice(segment.row_start, segment.row_end)
        shift = segment.row_start
        spans = [
            torch.where(plan.span_end[part] > 0, edge[part] - shift, 0) for edge in (plan.span_start, plan.span_end)
        ]
        alone = RowPlan(
            plan.positions[part], plan.slots[part], plan.is_canvas[part], plan.prefix_end[part], *spans,
            [Segment(0, segment.row_end - shift, segment.page_ids)],
        )  # fmt: skip
        found = TritonAttend(alone, cache, 4, block_m, is_decode=is_decode)(0, q[part], k[part], v[part])
        assert torch.equal(found, together[part]), "other segments changed a row"


def check_tree_attention(seed: int, heads: tuple[int, int, int], splits: int, past: int) -> None:
    """Tree rows, whose last keys are in scratch slots, give the same bits as with these keys in the pages."""
    torch.manual_seed(seed)
    place, config, page_size, num_pages = here(), shape_config(*heads), 16, 16
    # Per row: the tree rows on the path to it; row 7 is unused.
    paths = [[], [1], [1, 2], [3], [1, 4], [1, 2, 5], [1, 2, 5, 6]]
    cache = PagedCache.allocate(config, num_pages, page_size, place.device, place.dtype, num_scratch=len(paths))
    cache.k.normal_()
    cache.v.normal_()
    pages = torch.randperm(num_pages, device=place.device)[:12].int()
    num_rows = len(paths) + 1
    qkv = place.normal(num_rows, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
    prefix_end = torch.tensor([past + 1 + len(path) for path in paths] + [0], device=place.device)
    shared = cut_tiles([(0, num_rows)], max(64 // (heads[0] // heads[1]) // 4, 1))
    tiles = torch.tensor(shared + [(0, row, row + 1) for row in range(num_rows)], device=place.device)
    tree_slots = torch.full((num_rows, 1 + MAX_TREE_DEPTH), past + 1)
    for row, path in enumerate(paths):
        tree_slots[row, 1 : 1 + len(path)] = cache.num_paged + torch.tensor(path, dtype=torch.int64)
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, 64, splits)

    def attend(tree_slots: Tensor | None, tiles: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        none = torch.zeros_like(prefix_end).int()
        rows = RowTables(prefix_end.int(), none, none, tiles.int(), pages[None].contiguous(), page_size, tree_slots)
        return attend_paged(
            qkv, caches, rows, shape, AttentionWorkspace.allocate(shape, num_rows, place.dtype, place.device)
        )

    found = attend(tree_slots.int().to(place.device), tiles, (cache.k[0], cache.v[0]))
    for row, path in enumerate(paths):
        moved = [part[0].clone() for part in (cache.k, cache.v)]
        for at, source in enumerate(path, past + 1):
            for part in moved:
                part[int(pages[at // page_size]) * page_size + at % page_size] = part[cache.num_paged + source]
        alone = attend(None, tiles[: len(shared)], (moved[0], moved[1]))
        assert torch.equal(found[row], alone[row]), f"row {row} reads other keys"
    assert not bool(found[-1].any()), "an unused row reads keys"


def check_rotate(seed: int, heads: tuple[int, int, int], rows: int, has_norm: bool, partial: float = 1.0) -> None:
    """Head norms, RoPE and cache write equal those of the network; `partial` of each head is rotated."""
    torch.manual_seed(seed)
    place, config = here(), replace(shape_config(*heads), partial_rotary=partial)
    num_heads, kv_heads, head_dim = heads
    qkv = place.normal(rows, num_heads + 2 * kv_heads, head_dim)
    positions = torch.randint(0, 500, (rows,), device=place.device)
    slots = torch.randperm(2 * rows, device=place.device)[:rows]
    slots[::3] = -1
    rope = Rope(config).to(place.device)
    q, k, v = qkv.split((num_heads, kv_heads, kv_heads), dim=1)
    norms = None
    if has_norm:
        gains = [RMSNorm(head_dim, 1e-6).to(place.device, place.dtype) for _ in range(2)]
        for gain in gains:
            torch.nn.init.normal_(gain.weight)
        norms = HeadNorms(gains[0].weight, gains[1].weight, 1e-6)
        q, k = gains[0](q), gains[1](k)
    wanted = torch.cat((rotate(q, rope(positions)), rotate(k, rope(positions)), v), dim=1).detach()
    caches = tuple(torch.zeros(2 * rows, kv_heads, head_dim, device=place.device, dtype=place.dtype) for _ in range(2))
    angles = angle_table(rope, 512, head_dim)
    rotate_and_write(qkv, caches, RowSlots(positions.int(), slots.int()), angles, norms, config.rotary_dim)
    expect_close(qkv, wanted, place.tolerance)
    kept = slots >= 0
    for cache, part in zip(
        caches, (qkv[:, num_heads : num_heads + kv_heads], qkv[:, num_heads + kv_heads :]), strict=True
    ):
        assert torch.equal(cache[slots[kept]], part[kept]), "a written row differs from the row itself"
        untouched = torch.ones(2 * rows, dtype=torch.bool, device=place.device)
        untouched[slots[kept]] = False
        assert not bool(cache[untouched].any()), "a slot of no row was written"


def check_rows(seed: int, dim: int) -> None:
    torch.manual_seed(seed)
    place, rows = here(), 9
    table, masks, gain = place.normal(50, dim), place.normal(8, dim), place.normal(dim)
    ids = torch.randint(0, 50, (rows,), device=place.device)
    index = torch.randint(-1, 8, (rows,), device=place.device)
    x = embed(table, masks, ids.int(), index.int(), torch.empty(rows, dim, device=place.device, dtype=place.dtype))
    assert torch.equal(x, torch.where(index[:, None] >= 0, masks[index.clamp(min=0)], table[ids]))
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    expect_close(norm_rows(x, gain, 1e-6, torch.empty_like(x)), normed, place.tolerance)
    gate_up = place.normal(rows, 2 * dim)
    gate, up = gate_up.float().chunk(2, dim=-1)
    expect_close(swiglu_rows(gate_up, torch.empty_like(x)), torch.nn.functional.silu(gate) * up, place.tolerance)


def check_head(seed: int, shape: tuple[int, int], rows: int, temperature: float, has_bitmask: bool) -> None:
    """Token, confidence, entropy and is_finite equal the sampler's on stored logits, including noise."""
    torch.manual_seed(seed)
    place, (vocab, k) = here(), shape
    hidden, w, gain = place.normal(rows + 7, k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    index = torch.randperm(rows + 7, device=place.device)[:rows].int()
    wide = hidden[index.long()].float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    logits = normed.to(place.dtype).float() @ w.float().T
    bitmask = None
    if has_bitmask:
        bitmask = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), device=place.device).int()
        logits = logits.masked_fill(~unpack_bitmask(bitmask, vocab), -torch.inf)
    heat = torch.full((rows,), temperature, device=place.device)
    heat[::2] = 0
    seeds = torch.randint(-(2**62), 2**62, (rows,), device=place.device)
    positions = torch.randint(0, 10_000, (rows,), device=place.device)
    steps = torch.randint(0, 5, (rows,), device=place.device)
    ones, zeros = torch.ones(rows, device=place.device), torch.zeros(rows, device=place.device)
    wanted = propose(logits, SampleRows(heat, ones, zeros, zeros.long(), seeds, positions, steps))
    draws = Draws(heat, seeds, positions.int(), steps.int()) if temperature else None
    workspace = HeadWorkspace.allocate(w, rows, place.dtype)
    rows_ = HeadRows(index, draws, bitmask)
    results = propose_rows(hidden, Norm(gain, 1e-6), Weight(w), rows_, workspace)
    expect_proposals(results, wanted)


def expect_proposals(results: Tensor, wanted: ProposalTensors) -> Tensor:
    """The head's results equal the sampler's proposals; -> the tokens."""
    token_ids, confidence, entropy, is_finite = read_results(results)
    same = token_ids == wanted.token_ids
    # The reduction order differs on a GPU, so near-ties may resolve differently.
    assert float(same.float().mean()) >= (0.95 if token_ids.is_cuda else 1.0), (token_ids, wanted.token_ids)
    expect_close(confidence[same], wanted.confidence[same], 1e-3)
    expect_close(entropy, wanted.entropy, 1e-3)
    assert bool(is_finite.all())
    return token_ids


def check_runners_up(seed: int, shape: tuple[int, int]) -> None:
    """Runners-up are the next best among the two best tokens of every tile, with their probabilities; -1 if there are
    fewer."""
    torch.manual_seed(seed)
    place, (vocab, k), rows = here(), shape, 16
    hidden, w, gain = place.normal(rows, k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    index = torch.arange(rows, device=place.device).int()
    workspace = HeadWorkspace.allocate(w, rows, place.dtype)
    runners_up = torch.zeros(2 * head_kernel.NUM_NEXT, rows, dtype=torch.int32, device=place.device)
    workspace = workspace.with_results(workspace.results, runners_up)
    token_ids = read_results(propose_rows(hidden, Norm(gain, 1e-6), Weight(w), HeadRows(index), workspace))[0]
    logits = workspace.normed.float() @ w.float().T
    num_tiles = -(-vocab // head_kernel.BLOCK_V)
    spread = torch.full((rows, num_tiles * head_kernel.BLOCK_V), -torch.inf, device=place.device)
    spread[:, :vocab] = logits
    best = spread.view(rows, num_tiles, -1).topk(2)
    ids = best.indices + torch.arange(num_tiles, device=place.device)[:, None] * head_kernel.BLOCK_V
    order = best.values.flatten(1).argsort(1, descending=True)[:, : head_kernel.NUM_NEXT + 1]
    wanted = ids.flatten(1).gather(1, order).T
    allowed_share = 0.9 if place.device == "cuda" else 1.0  # near-ties
    assert float((wanted[0] == token_ids).float().mean()) >= allowed_share
    for i in range(head_kernel.NUM_NEXT):
        chances = runners_up[2 * i + 1].view(torch.float32)
        if i + 1 >= 2 * num_tiles:
            assert runners_up[2 * i].tolist() == [-1] * rows
            assert chances.tolist() == [0.0] * rows
            continue
        same = runners_up[2 * i] == wanted[i + 1]
        assert float(same.float().mean()) >= allowed_share, (runners_up[2 * i], wanted[i + 1])
        expect_close(chances[same], logits.softmax(1).gather(1, wanted[i + 1][:, None])[:, 0][same], 1e-3)


def check_head_is_batch_invariant(shape: tuple[int, int], counts: tuple[int, ...], temperature: float) -> None:
    """The first rows have the same token, confidence and entropy bits in batches of any size."""
    torch.manual_seed(0)
    place, (vocab, k) = here(), shape
    hidden, w, gain = place.normal(max(counts), k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    found = []
    for count in counts:
        index = torch.arange(count, device=place.device).int()
        heat = torch.full((count,), temperature, device=place.device)
        draws = Draws(heat, index.long(), index, index) if temperature else None
        workspace = HeadWorkspace.allocate(w, count, place.dtype)
        results = propose_rows(hidden, Norm(gain, 1e-6), Weight(w), HeadRows(index, draws), workspace)
        found.append(results[:, : min(counts)].clone())
    for count, other in zip(counts[1:], found[1:], strict=True):
        same = (other == found[0]).all(1).tolist()
        assert all(same), f"{count} rows: token, confidence, entropy, is_finite are equal: {same}"


def check_head_reports_non_finite() -> None:
    place, rows, k = here(), 16, 64
    hidden, w = place.normal(rows, k), place.normal(130, k)
    hidden[3, 5] = torch.nan
    index = torch.arange(rows, device=place.device).int()
    workspace = HeadWorkspace.allocate(w, rows, place.dtype)
    results = propose_rows(hidden, Norm(place.normal(k), 1e-6), Weight(w), HeadRows(index), workspace)
    is_finite = read_results(results)[3]
    assert is_finite.tolist() == [row != 3 for row in range(rows)]
    assert head_kernel.BLOCK_V < 130, "the vocabulary must not fit one tile, or the last tile's edge goes untested"


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for seed, heads in enumerate(((12, 2, 128), (9, 3, 64), (32, 8, 128))):
        for splits, block_m in ((16, 64), (1, 128)):
            name = f"attention heads={heads} splits={splits} block={block_m}"
            yield name, lambda s=seed, h=heads, n=splits, b=block_m: check_attention(s, h, n, b)
        for splits, block_m in ((1, 16), (4, 16), (2, 32), (4, 64)):
            name = f"attention decode heads={heads} splits={splits} block={block_m}"
            yield name, lambda s=seed, h=heads, n=splits, b=block_m: check_attention(s, h, n, b, is_decode=True)
        for rows, norm in ((16, False), (200, True)):
            name = f"rotate heads={heads} rows={rows} norm={norm}"
            yield name, lambda h=heads, r=rows, n=norm: check_rotate(0, h, r, n)
        for past in (20, 77, 118):
            yield (
                f"attention tree rows heads={heads} past={past}",
                lambda s=seed, h=heads, p=past: check_tree_attention(s, h, 16, p),
            )
    for vocab_size in (49152, 100):
        yield f"runners-up of {vocab_size}", lambda v=vocab_size: check_runners_up(0, (v, 576))
    yield "attention is batch-invariant", lambda: check_attention_is_batch_invariant(3)
    yield "attention decode is batch-invariant", lambda: check_attention_is_batch_invariant(3, 16, is_decode=True)
    yield "row kernels", lambda: check_rows(0, 576)
    for rows, heat, mask in ((16, 0.0, False), (64, 0.8, True), (256, 0.8, False)):
        name = f"head rows={rows} temperature={heat} bitmask={mask}"
        yield name, lambda r=rows, t=heat, m=mask: check_head(0, (49152, 576), r, t, m)
    yield "head reports non-finite rows", check_head_reports_non_finite
    for vocab, k in ((49152, 576), (500, 1280), (151936, 1536)):
        for heat in (0.0, 0.8):
            name = f"head is batch-invariant vocabulary={vocab} dim={k} temperature={heat}"
            yield name, lambda v=vocab, d=k, t=heat: check_head_is_batch_invariant((v, d), (16, 32, 64, 128), t)
