"""Canvases and tails of dialects with blocks: known tokens of the block are rows of the canvas, which ends with it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from quicksilver.core import DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail, canvas_tail
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.stack import Stack


@dataclass(frozen=True, slots=True)
class CanvasOrBlock:
    """The part that decoders share: the canvas is the rest of a block in a dialect with blocks, else `canvas_len` masks
    after the text."""

    params: DecoderParams
    dialect: Dialect = AUTOREGRESSIVE

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        if self.dialect.has_blocks:
            return open_block(self.dialect, max_tokens, place)
        return Canvas.blank(min(self.params.canvas_len, max_tokens))

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        return block_tail(canvas, self.dialect, tokens) if self.dialect.has_blocks else canvas_tail(canvas)

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        return self.decide_all([canvas], proposal)[0]

    @abstractmethod
    def decide_all(self, canvases: Sequence[Canvas], proposal: Proposal) -> list[Decision]:
        """As `decide`, for the canvases of several requests. `proposal`: those of all of them, in order."""


def open_block(dialect: Dialect, max_tokens: int, place: Place) -> Canvas:
    """The masked rest of the block at `place`. A dialect that attends to the whole text has one block: the answer."""
    start = dialect.block_start(place.num_tokens, place.num_prompt)
    num_fixed = place.num_tokens - start
    if dialect.is_full:
        length = min(max_tokens, dialect.block_len)
        return replace(Canvas.blank(length), num_fixed=num_fixed, offset=place.num_tokens - place.num_prompt)
    if dialect.has_context_seed and num_fixed == 0:
        return Canvas.blank(1)
    return _masked_rest(dialect.block_len, num_fixed)


@cache
def _masked_rest(block_len: int, num_fixed: int) -> Canvas:
    return replace(Canvas.blank(block_len - num_fixed), num_fixed=num_fixed, offset=num_fixed)


def block_tail(canvas: Canvas, dialect: Dialect, tokens: Sequence[int]) -> Tail:
    """All rows of the block: its known tokens, then the canvas."""
    if dialect.has_context_seed and canvas.num_fixed == 0:
        return Tail()
    if dialect.has_stale_prefix:
        # Sub-blocks that are filled become context while the canvas stays.
        start = dialect.block_start(len(tokens), num_prompt=len(tokens) - canvas.offset)
        canvas = replace(canvas, num_fixed=len(tokens) - start)
    return seeded_tail(canvas, dialect, tokens, is_shifted=dialect.is_shifted)


def seeded_tail(canvas: Canvas, dialect: Dialect, tokens: Sequence[int], *, is_shifted: bool) -> Tail:
    num_fixed, is_masked = canvas.num_fixed, canvas.is_masked.tolist()
    fixed = tuple(tokens[len(tokens) - num_fixed :])
    first = num_fixed + (not is_shifted)
    return Tail(
        fixed + masked_ids(canvas, dialect),
        (False,) * num_fixed + tuple(is_masked),
        num_fixed=num_fixed,
        proposing=(first, first + len(is_masked)),
    )


def masked_ids(canvas: Canvas, dialect: Dialect) -> tuple[int, ...]:
    """The tokens of the canvas, with the mask token at masked positions if the dialect has one."""
    if dialect.mask_id is None:
        return tuple(canvas.token_ids.tolist())
    return tuple(np.where(canvas.is_masked, dialect.mask_id, canvas.token_ids).tolist())


def in_sub_block(stack: Stack, sub_block_len: int) -> npt.NDArray[np.bool_]:
    """The masked positions of every canvas that are in the leftmost sub-block that has any."""
    if not sub_block_len:
        return stack.is_masked
    index = (np.arange(stack.exists.shape[-1]) + stack.column("offset")) // sub_block_len
    first = stack.is_masked.argmax(-1)[:, None]
    return stack.is_masked & (index == np.take_along_axis(index, first, -1))


def shrink(stack: Stack) -> list[Decision]:
    """Commit the leading decided run of every canvas. It stays rows of the canvas until the block is complete."""
    decisions = []
    rows = zip(stack.canvases, stack.num_decided(), stack.token_ids.tolist(), strict=True)
    for row, (canvas, count, token_ids) in enumerate(rows):
        if count == len(canvas.token_ids):
            decisions.append(Decision(token_ids[:count], None))
            continue
        rest = slice(count, len(canvas.token_ids))
        after = Canvas(
            stack.token_ids[row, rest],
            stack.is_masked[row, rest],
            stack.confidence[row, rest],
            canvas.step + 1,
            num_fixed=canvas.num_fixed + count,
            offset=canvas.offset + count,
        )
        decisions.append(Decision(token_ids[:count], after))
    return decisions
