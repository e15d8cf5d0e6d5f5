"""Canvases and tails of dialects with blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quicksilver.dialect import ContextKind, Dialect
from quicksilver.diffusion.blocks import block_tail, in_sub_block, open_block, shrink
from quicksilver.diffusion.decoder import Canvas, Place
from quicksilver.diffusion.stack import Stack
from tests.support.proposals import proposal

BLOCK = Dialect(context=ContextKind.BLOCK, is_shifted=False, block_len=4, mask_id=9)
SHIFTED = Dialect(context=ContextKind.BLOCK, block_len=4, mask_id=9, has_context_seed=True)
FULL = Dialect(context=ContextKind.FULL, is_shifted=False, block_len=6, mask_id=9)
TEXT = [1, 2, 3, 4, 5, 6]


def test_known_tokens_of_the_block_are_rows_and_every_mask_proposes_itself() -> None:
    canvas = open_block(BLOCK, 1, Place(6, 6))
    tail = block_tail(canvas, BLOCK, TEXT)
    assert tail.token_ids == (5, 6, 9, 9)
    assert tail.is_masked == (False, False, True, True)
    assert (tail.num_fixed, tail.proposing_rows, tail.known) == (2, (3, 5), ())


def test_a_shifted_mask_is_proposed_by_the_row_before_it() -> None:
    assert block_tail(open_block(SHIFTED, 9, Place(6, 6)), SHIFTED, TEXT).proposing_rows == (2, 4)


def test_the_first_token_of_a_block_comes_from_the_context_where_the_dialect_has_a_seed() -> None:
    canvas = open_block(SHIFTED, 9, Place(4, 4))
    assert len(canvas.token_ids) == 1
    assert block_tail(canvas, SHIFTED, TEXT[:4]).token_ids == ()


def test_with_a_full_context_the_whole_text_is_in_the_tail() -> None:
    canvas = open_block(FULL, 20, Place(6, 4))
    assert (len(canvas.token_ids), canvas.num_fixed, canvas.offset) == (6, 6, 2)
    assert block_tail(canvas, FULL, TEXT).token_ids == (*TEXT, *[9] * 6)


def test_only_the_leftmost_sub_block_with_masks_is_open() -> None:
    canvas = replace(Canvas.blank(6), offset=1, is_masked=np.array([0, 1, 1, 1, 1, 1]) > 0)
    later = replace(Canvas.blank(3), offset=4, is_masked=np.array([0, 0, 1]) > 0)
    stack = Stack.of([canvas, later], proposal([0] * 9, [0.5] * 9))
    found = [[False, True, True, False, False, False], [False, False, True, False, False, False]]
    assert in_sub_block(stack, 4).tolist() == found
    assert in_sub_block(stack, 0).tolist() == stack.is_masked.tolist()


def test_committed_tokens_stay_rows_until_the_block_is_complete() -> None:
    canvas = open_block(BLOCK, 9, Place(6, 6))
    stack = Stack.of([canvas], proposal([7, 8], [0.9, 0.1]))
    (part,) = shrink(stack.fill(np.array([[True, False]])))
    assert part.commit == [7]
    assert part.canvas is not None
    assert (part.canvas.num_fixed, part.canvas.offset, part.canvas.step) == (3, 3, 1)
    (last,) = shrink(Stack.of([part.canvas], proposal([8], [0.9])).fill(np.array([[True]])))
    assert (last.commit, last.canvas) == ([8], None)
