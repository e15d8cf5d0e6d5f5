"""Paged attention over ragged rows: correct for any row plan, with the same bits for any chunking."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quicksilver.model.attention import (
    ROW_TILE,
    PagedCache,
    RowPlan,
    SdpaAttend,
    Segment,
    Visibility,
    min_invariant_rows,
    missing_rows,
    on_full_tiles,
    padded_keys,
)
from tests.model.build import (
    PAGE_SIZE,
    SMALL,
    causal_plan,
    new_cache,
    random_model,
    run_dense,
    run_plan,
    small_config,
    token_ids,
)
from tests.support.dense_attend import DenseAttend


def in_chunks(ids: Tensor, cuts: list[int], pages: Tensor) -> Tensor:
    """Hidden states of one sequence fed to a fresh cache in pieces that end at `cuts`."""
    model, cache = random_model(), new_cache(SMALL)
    outputs = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        plan = causal_plan([torch.arange(start, end)], [pages])
        outputs.append(run_plan(model, ids[start:end], plan, cache))
    return torch.cat(outputs)


@pytest.mark.parametrize("cuts", [[], [1], [39], [7, 8, 23], list(range(1, 40))])
@pytest.mark.parametrize("pages", [torch.arange(10), torch.tensor([9, 3, 4, 5, 0, 60, 59, 1, 2, 30])])
def test_a_prompt_in_any_chunks_on_any_pages_equals_the_dense_forward_bit_for_bit(
    cuts: list[int], pages: Tensor
) -> None:
    ids = token_ids(40)
    assert torch.equal(in_chunks(ids, cuts, pages), run_dense(random_model(), ids))


def test_pages_at_the_very_end_of_the_cache_are_read_within_bounds() -> None:
    ids = token_ids(40)
    assert torch.equal(in_chunks(ids, [20], torch.arange(54, 64)), run_dense(random_model(), ids))


def test_sequences_of_different_lengths_in_one_forward_equal_each_alone() -> None:
    model, cache = random_model(), new_cache(SMALL)
    texts = [token_ids(length, seed=length) for length in (3, 21, 16, 5)]
    pages = [torch.arange(i * 8, i * 8 + 8) for i in range(4)]
    held = [0, 20, 9, 4]
    for text, where, have in zip(texts, pages, held, strict=True):
        if have:
            run_plan(model, text[:have], causal_plan([torch.arange(have)], [where]), cache)
    positions = [torch.arange(have, len(text)) for text, have in zip(texts, held, strict=True)]
    rows = torch.cat([text[have:] for text, have in zip(texts, held, strict=True)])
    mixed = run_plan(model, rows, causal_plan(positions, pages), cache)
    alone = torch.cat([run_dense(model, text)[have:] for text, have in zip(texts, held, strict=True)])
    assert torch.equal(mixed, alone)


def test_a_row_does_not_change_with_the_number_of_keys_after_it() -> None:
    """Long enough to cross the kernel's key blocks, and cut where its summation order would change."""
    torch.manual_seed(0)
    length, heads, kv_heads, head_dim = 700, 6, 2, 64
    q, k, v = (torch.randn(length, h, head_dim) for h in (heads, kv_heads, kv_heads))
    whole = DenseAttend(1, is_causal=True)(0, q, k, v)
    for end in (1, 2, 31, 127, 129, 193, 257, 383, 512, 513, 641, 700):
        for start in (max(end - 1, 0), max(end - 6, 0)):
            visible = torch.ones(end, end, dtype=torch.bool).tril()
            cut = DenseAttend(1, visible)(0, q[:end], k[:end], v[:end])
            assert torch.equal(cut[start:], whole[start:end]), (start, end)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_chunks_and_short_ones_give_the_same_bits(threads: int) -> None:
    """Many rows are laid out by head, few are stacked; a row must not notice."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(150, h, 32) for h in (6, 2, 2))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = DenseAttend(1, is_causal=True)(0, q, k, v)
        for end in (1, 3, 63, 64, 65, 127, 150):
            assert torch.equal(DenseAttend(1, is_causal=True)(0, q[:end], k[:end], v[:end]), whole[:end]), end
    finally:
        torch.set_num_threads(before)


def test_canvas_rows_attend_to_the_prefix_and_their_whole_canvas_and_write_nothing() -> None:
    model, cache, ids = random_model(), new_cache(SMALL), token_ids(16)
    pages = torch.tensor([5, 2, 9, 1])
    run_plan(model, ids[:11], causal_plan([torch.arange(11)], [pages]), cache)
    before = cache.k.clone()
    visible = torch.ones(16, 16).tril().bool()
    visible[12:, 12:] = True
    with torch.inference_mode():
        wanted = model(model.embed(ids), torch.arange(16), DenseAttend(1, visible))[11:]
    positions = torch.arange(11, 16)
    slot = int(pages[11 // PAGE_SIZE]) * PAGE_SIZE + 11 % PAGE_SIZE
    plan = RowPlan(
        positions, torch.tensor([slot, -1, -1, -1, -1]), torch.zeros(5, dtype=torch.bool), torch.full((5,), 12),
        torch.tensor([0, 1, 1, 1, 1]), torch.tensor([0, 5, 5, 5, 5]), [Segment(0, 5, pages)],
    )  # fmt: skip
    assert torch.equal(run_plan(model, ids[11:], plan, cache), wanted)
    changed = (cache.k != before).flatten(2).any(2).any(0).nonzero().flatten().tolist()
    assert changed == [slot]


def test_canvas_rows_attend_to_drafted_tokens_written_in_the_same_forward() -> None:
    """Rows 0..2 verify three tokens; rows 3..4 are masks after the first of them, rows 5..6 masks after the second."""
    model, ids, masks = random_model(), token_ids(9), token_ids(4, seed=9)
    cache, pages = new_cache(SMALL), torch.arange(4)
    run_plan(model, ids[:6], causal_plan([torch.arange(6)], [pages]), cache)
    plan = RowPlan(
        positions=torch.tensor([6, 7, 8, 7, 8, 8, 9]),
        slots=torch.tensor([6, 7, 8, -1, -1, -1, -1]),
        is_canvas=torch.zeros(7, dtype=torch.bool),
        prefix_end=torch.tensor([7, 8, 9, 7, 7, 8, 8]),
        span_start=torch.tensor([0, 0, 0, 3, 3, 5, 5]),
        span_end=torch.tensor([0, 0, 0, 5, 5, 7, 7]),
        segments=[Segment(0, 7, pages)],
    )
    found = run_plan(model, torch.cat((ids[6:], masks)), plan, cache)
    assert torch.equal(found[:3], run_dense(model, ids)[6:])
    for draft, (start, kept) in enumerate(((3, 7), (5, 8))):
        text = torch.cat((ids[:kept], masks[2 * draft : 2 * draft + 2]))
        visible = torch.ones(kept + 2, kept + 2).tril().bool()
        visible[kept:, kept:] = True
        with torch.inference_mode():
            wanted = model(model.embed(text), torch.arange(kept + 2), DenseAttend(1, visible))[kept:]
        torch.testing.assert_close(found[start : start + 2], wanted, rtol=0, atol=1e-5)


def test_scored_continuations_are_causal_in_their_own_span_and_independent_of_each_other() -> None:
    model, prompt = random_model(), token_ids(7)
    branches = [token_ids(3, seed=5), token_ids(1, seed=6), token_ids(4, seed=7)]
    cache, pages = new_cache(SMALL), torch.tensor([3, 1])
    run_plan(model, prompt, causal_plan([torch.arange(7)], [pages]), cache)
    first = [sum(len(b) for b in branches[:i]) for i in range(3)]
    rows = torch.arange(8)
    plan = RowPlan(
        positions=torch.cat([torch.arange(7, 7 + len(b)) for b in branches]),
        slots=torch.full((8,), -1),
        is_canvas=torch.zeros(8, dtype=torch.bool),
        prefix_end=torch.full((8,), 7),
        span_start=torch.cat([torch.full((len(b),), f) for b, f in zip(branches, first, strict=True)]),
        span_end=rows + 1,
        segments=[Segment(0, 8, pages)],
    )
    found = run_plan(model, torch.cat(branches), plan, cache)
    wanted = torch.cat([run_dense(model, torch.cat((prompt, b)))[7:] for b in branches])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_nan_in_one_sequence_does_not_reach_others_even_through_reused_pages() -> None:
    model, ids = random_model(), token_ids(9)
    cache, pages = new_cache(SMALL), [torch.tensor([2, 0, 1]), torch.tensor([3, 4, 5])]
    plan = causal_plan([torch.arange(9), torch.arange(9)], pages)
    x = model.embed(torch.cat((ids, ids)))
    x[9:] = float("nan")
    with torch.inference_mode():
        both = model(x, plan.positions, SdpaAttend(plan, cache))
    assert both[9:].isnan().all()
    assert torch.equal(both[:9], run_dense(model, ids))
    reused = run_plan(model, ids, causal_plan([torch.arange(9)], [pages[1]]), cache)
    assert torch.equal(reused, run_dense(model, ids))


def test_a_half_precision_cache_is_read_back_in_the_models_dtype() -> None:
    model, ids = random_model(), token_ids(12)
    plan = causal_plan([torch.arange(12)], [torch.arange(3)])
    found = run_plan(model, ids, plan, new_cache(SMALL, dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, run_dense(model, ids), rtol=0.1, atol=0.1)


def brute_force(plan: RowPlan, cache: PagedCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each row by itself, in float64, from the keys its plan names."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for segment in plan.segments:
        slots = (segment.page_ids[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
        for row in range(segment.row_start, segment.row_end):
            prefix, span = slots[: plan.prefix_end[row]], slice(int(plan.span_start[row]), int(plan.span_end[row]))
            keys = torch.cat((cache.k[0, prefix], k[span])).double().repeat_interleave(group, 1)
            values = torch.cat((cache.v[0, prefix], v[span])).double().repeat_interleave(group, 1)
            scores = torch.einsum("hd,khd->hk", q[row].double(), keys) * q.shape[2] ** -0.5
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), values).float()
    return out


@st.composite
def ragged_plans(draw: st.DrawFn) -> RowPlan:
    """Any mix of causal chunks, canvases and scoring spans, on scattered pages."""
    columns: list[list[int]] = [[], [], [], [], []]
    segments, free = [], draw(st.permutations(range(40)))
    for _ in range(draw(st.integers(1, 4))):
        held, fresh, extra = draw(st.integers(0, 9)), draw(st.integers(1, 6)), draw(st.integers(0, 5))
        kind = draw(st.sampled_from(["canvas", "score"]))
        num_pages = -(-(held + fresh) // PAGE_SIZE)
        pages, free = free[:num_pages], free[num_pages:]
        start = len(columns[0])
        for position in range(held, held + fresh):
            slot = pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
            for column, value in zip(columns, (position, slot, position + 1, 0, 0), strict=True):
                column.append(value)
        first = len(columns[0])
        for i in range(extra):
            end = first + (extra if kind == "canvas" else i + 1)
            for column, value in zip(columns, (held + fresh + i, -1, held + fresh, first, end), strict=True):
                column.append(value)
        segments.append(Segment(start, len(columns[0]), torch.tensor(pages)))
    positions, slots, prefix_end, span_start, span_end = (torch.tensor(column) for column in columns)
    return RowPlan(positions, slots, torch.zeros_like(slots).bool(), prefix_end, span_start, span_end, segments)


@given(plan=ragged_plans(), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_ragged_plan_equals_brute_force(plan: RowPlan, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    config = small_config(num_layers=1)
    cache = new_cache(config)
    cache.k.normal_(generator=generator)
    cache.v.normal_(generator=generator)
    rows = len(plan.positions)
    q, k, v = (torch.randn(rows, heads, config.head_dim, generator=generator) for heads in (4, 2, 2))
    found = SdpaAttend(plan, cache)(0, q, k, v)
    torch.testing.assert_close(found, brute_force(plan, cache, q, k, v), rtol=0, atol=2e-6)
    written = plan.slots >= 0
    assert torch.equal(cache.k[0, plan.slots[written]], k[written])


def test_moving_a_plan_moves_every_tensor() -> None:
    plan = causal_plan([torch.arange(3)], [torch.arange(1)]).to("meta")
    tensors = (plan.positions, plan.slots, plan.is_canvas, plan.prefix_end, plan.span_start, plan.span_end)
    assert {t.device.type for t in (*tensors, plan.segments[0].page_ids)} == {"meta"}


def test_dense_attention_with_gradients_equals_the_exact_one() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(12, h, 16) for h in (4, 2, 2))
    exact = DenseAttend(3, is_causal=True)(0, q, k, v)
    q.requires_grad_()
    torch.testing.assert_close(DenseAttend(3, is_causal=True)(0, q, k, v), exact, rtol=0, atol=1e-6)


def test_padded_keys_hold_the_keys_and_never_shrink() -> None:
    sizes = [padded_keys(n) for n in range(1, 3000)]
    assert all(size >= n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("num_rows", [1, 3, 64, 70])
def test_masked_attention_equals_softmax_over_the_visible_keys(num_rows: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(num_rows, 4, 8), torch.randn(50, 2, 8), torch.randn(50, 2, 8)
    visible = torch.rand(num_rows, 50) > 0.5
    visible[:, 0] = True
    mask = Visibility(visible)
    padding = (0, 0, 0, 0, 0, mask.num_keys - 50)
    found = mask.attend(q, torch.nn.functional.pad(k, padding), torch.nn.functional.pad(v, padding))
    for head in range(4):
        scores = (q[:, head] @ k[:, head // 2].T / 8**0.5).masked_fill(~visible, float("-inf"))
        torch.testing.assert_close(found[:, head], scores.softmax(-1) @ v[:, head // 2], rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _inference() -> None:
    torch.manual_seed(0)


def test_a_row_has_the_same_bits_whatever_the_number_of_rows() -> None:
    linear = torch.nn.Linear(192, 96)
    x = torch.randn(37, 192)
    with torch.inference_mode():
        whole = on_full_tiles(linear, x)
        for count in (1, 2, 3, 5, 8, 17, 36):
            assert torch.equal(on_full_tiles(linear, x[:count]), whole[:count]), count


def test_rows_are_padded_to_full_tiles() -> None:
    least = min_invariant_rows()
    with torch.inference_mode():
        for count in range(1, 40):
            total = count + missing_rows(torch.zeros(count, 2), ROW_TILE)
            assert total >= least
            assert total % ROW_TILE == 0
        assert missing_rows(torch.zeros(5, 2), 1) == 0


def test_training_pads_nothing() -> None:
    assert missing_rows(torch.zeros(1, 2), ROW_TILE) == 0
