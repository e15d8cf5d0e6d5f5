"""Canvases and tails of dialects with blocks: known tokens of the block are rows of the canvas, which ends with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.core import DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail, canvas_tail


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


def open_block(dialect: Dialect, max_tokens: int, place: Place) -> Canvas:
    """The masked rest of the block at `place`. A dialect that attends to the whole text has one block: the answer."""
    start = dialect.block_start(place.num_tokens, place.num_prompt)
    num_fixed = place.num_tokens - start
    if dialect.is_full:
        length = min(max_tokens, dialect.block_len)
        return replace(Canvas.blank(length), num_fixed=num_fixed, offset=place.num_tokens - place.num_prompt)
    if dialect.has_context_seed and num_fixed == 0:
        return Canvas.blank(1)
    return replace(Canvas.blank(dialect.block_len - num_fixed), num_fixed=num_fixed, offset=num_fixed)


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
    return tuple(torch.where(canvas.is_masked, dialect.mask_id, canvas.token_ids).tolist())


def in_sub_block(canvas: Canvas, sub_block_len: int) -> Tensor:
    """The masked positions of the leftmost sub-block that has any."""
    if not sub_block_len or not bool(canvas.is_masked.any()):
        return canvas.is_masked
    index = (torch.arange(len(canvas.is_masked)) + canvas.offset) // sub_block_len
    return canvas.is_masked & (index == index[int(canvas.is_masked.int().argmax())])


def shrink(canvas: Canvas, num_committed: int) -> Decision:
    """Commit the first `num_committed` positions. They stay rows of the canvas until the block is complete."""
    tokens = canvas.token_ids[:num_committed].tolist()
    if num_committed == len(canvas.token_ids):
        return Decision(tokens, None)
    rest = replace(
        canvas,
        token_ids=canvas.token_ids[num_committed:],
        is_masked=canvas.is_masked[num_committed:],
        confidence=canvas.confidence[num_committed:],
        num_fixed=canvas.num_fixed + num_committed,
        offset=canvas.offset + num_committed,
    )
    return Decision(tokens, rest)
