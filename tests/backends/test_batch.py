"""Works to rows: positions, KV slots, what each row sees, and which rows propose."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import chain

import numpy as np
import pytest

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.batch import Batch, build_batch, write_masks
from quicksilver.core import MaskTask, Request
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import make_decoder
from tests.support.dialects import DISTINCT, dialect_decoders, tiny_dialect
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params

PAGE = 4


def sequence(tokens: tuple[int, ...], pages: list[int]) -> Sequence:
    params = decode_params("verify", canvas_len=4)
    return Sequence(Request("x", tokens, params), make_decoder(params.decoder), pages=pages)


def work(start: int, end: int, tail: Tail | None) -> Work:
    """Tokens 10, 11, ... in the pages 5, 2 and 7."""
    return Work(sequence(tuple(range(10, 19)), [5, 2, 7]), start, end, tail)


def visible(batch: Batch, row: int) -> tuple[int, list[int]]:
    """The end of the visible prefix, and the batch rows that a row sees."""
    plan = batch.plan
    return int(plan.prefix_end[row]), list(range(int(plan.span_start[row]), int(plan.span_end[row])))


def test_context_rows_write_to_the_slots_of_their_pages() -> None:
    batch = build_batch([work(2, 9, None)], PAGE)
    assert batch.token_ids.tolist() == list(range(12, 19))
    assert batch.plan.positions.tolist() == list(range(2, 9))
    assert batch.plan.slots.tolist() == [22, 23, 8, 9, 10, 11, 28]
    assert batch.plan.prefix_end.tolist() == list(range(3, 10))
    assert (batch.proposing.tolist(), batch.has_prompt, batch.has_canvas) == ([], True, False)


def test_canvas_rows_see_the_context_and_each_other_and_write_nothing() -> None:
    batch = build_batch([work(8, 9, Tail((0, 40, 0), (True, False, True)))], PAGE)
    assert batch.plan.slots.tolist() == [28, -1, -1, -1]
    assert batch.mask_index.tolist() == [-1, 0, -1, 2]
    assert batch.plan.is_canvas.tolist() == [False, True, True, True]
    assert [visible(batch, row) for row in (1, 2, 3)] == [(9, [1, 2, 3])] * 3
    assert (batch.proposing.tolist(), batch.has_prompt, batch.has_canvas) == ([0, 1, 2, 3], False, True)


def test_drafted_rows_are_causal_and_write_their_slots() -> None:
    batch = build_batch([work(8, 9, Tail((40, 41), (False, False), is_causal=True))], PAGE)
    assert batch.plan.slots.tolist() == [28, 29, 30]
    assert batch.plan.prefix_end.tolist() == [9, 10, 11]
    assert not batch.has_canvas


def test_branches_see_the_context_and_only_themselves() -> None:
    tail = Tail((40, 41, 50), (False,) * 3, branches=(2, 1), targets=((0, 40),))
    batch = build_batch([work(8, 9, tail)], PAGE)
    assert batch.plan.slots.tolist() == [28, -1, -1, -1]
    assert batch.plan.positions.tolist() == [8, 9, 10, 9]
    assert [visible(batch, row) for row in (1, 2, 3)] == [(9, [1]), (9, [1, 2]), (9, [3])]


def test_works_follow_each_other_as_segments_with_their_own_pages() -> None:
    other = Work(sequence((1, 2, 3), [9]), 0, 3, Tail())
    batch = build_batch([work(8, 9, Tail((0,), (True,))), other], PAGE)
    segments = [(segment.row_start, segment.row_end, segment.page_ids.tolist()) for segment in batch.plan.segments]
    assert segments == [(0, 2, [5, 2, 7]), (2, 5, [9])]
    assert batch.proposing.tolist() == [0, 1, 4]
    assert batch.plan.slots.tolist() == [28, -1, 36, 37, 38]


def test_page_ids_are_cached_until_the_pages_change() -> None:
    one = work(8, 9, Tail())
    first = build_batch([one], PAGE).plan.segments[0].page_ids
    assert build_batch([one], PAGE).plan.segments[0].page_ids is first
    one.sequence.pages.append(3)
    assert build_batch([one], PAGE).plan.segments[0].page_ids.tolist() == [5, 2, 7, 3]
    one.sequence.pages = [5, 2, 7, 8]
    assert build_batch([one], PAGE).plan.segments[0].page_ids.tolist() == [5, 2, 7, 8]


def columns(batch: Batch) -> list[list[int]]:
    plan = batch.plan
    rows = (batch.token_ids, batch.mask_index, plan.positions, plan.slots, plan.prefix_end, plan.is_canvas)
    return [one.tolist() for one in rows]


@pytest.mark.parametrize("name", DISTINCT)
def test_works_of_all_kinds_have_the_same_rows_alone_and_together(name: str) -> None:
    """Spans and proposing rows count from the first row of the work."""
    dialect, works = tiny_dialect(name), list[Work]()
    for i, params in enumerate(list(dialect_decoders(name).values()) * 2):
        text, pages = tuple(range(1, 14 + 3 * i)), [7 * page % 61 for page in range(20)]
        one = Sequence(Request("x", text, params), make_decoder(params.decoder, dialect), dialect=dialect, pages=pages)
        one.open_canvas()
        tail = one.tail
        end = len(text) - tail.num_fixed
        works.append(Work(one, min(4 * i, max(end - 1, 0)), end, tail))
    works.append(Work(works[0].sequence, 0, 9, None))
    together, alone = build_batch(works, 16), [build_batch([one], 16) for one in works]
    assert columns(together) == [list(chain(*parts)) for parts in zip(*map(columns, alone), strict=True)]
    firsts = [segment.row_start for segment in together.plan.segments]
    proposing = [row + first for one, first in zip(alone, firsts, strict=True) for row in one.proposing.tolist()]
    assert together.proposing.tolist() == proposing
    for span in ("span_start", "span_end"):
        parts = [(getattr(one.plan, span).numpy(), one.plan) for one in alone]
        has_span = [plan.span_end.numpy() > 0 for _, plan in parts]
        shifted = [
            np.where(seen, values + first, 0) for (values, _), seen, first in zip(parts, has_span, firsts, strict=True)
        ]
        assert getattr(together.plan, span).tolist() == np.concatenate(shifted).tolist()


class Group:
    """Writes the masks of its members one by one and counts the calls."""

    def __init__(self) -> None:
        self.num_tasks: list[int] = []

    def write_masks(self, tasks: Seq[MaskTask[Staircase]]) -> list[int]:
        self.num_tasks.append(len(tasks))
        return [constraint.write_masks(ahead, out) for constraint, ahead, out in tasks]


class Member(Staircase):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group  # type: ignore[assignment]


def task(constraint: Staircase, *ahead: int) -> tuple[MaskTask[Staircase], np.ndarray]:
    rows = np.zeros((len(ahead) + 1, 4), dtype=np.int32)
    return (constraint, ahead, rows.data), rows


def test_each_group_is_called_once_and_rows_keep_their_places() -> None:
    first, second = Group(), Group()
    pairs = [task(Member(first)), task(Staircase(), 7), task(Member(second), 7, 8), task(Member(first), 7, 9),
             task(Member(second))]  # fmt: skip
    assert write_masks([one for one, _ in pairs]) == [1, 2, 3, 2, 1]
    assert (first.num_tasks, second.num_tasks) == ([2], [2])
    for (constraint, ahead, _), rows in pairs:
        (wanted, out) = task(Staircase(), *ahead)
        constraint.write_masks(ahead, wanted[2])
        np.testing.assert_array_equal(rows, out)


def test_a_single_member_writes_its_own_masks() -> None:
    group = Group()
    assert write_masks([task(Member(group))[0], task(Staircase())[0]]) == [1, 1]
    assert not group.num_tasks


def test_an_error_of_a_group_propagates() -> None:
    class Failing(Group):
        def write_masks(self, tasks: Seq[MaskTask[Staircase]]) -> list[int]:
            raise RuntimeError("broken")

    group = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        write_masks([task(Member(group))[0], task(Member(group))[0]])


def test_no_tasks() -> None:
    assert write_masks([]) == []
