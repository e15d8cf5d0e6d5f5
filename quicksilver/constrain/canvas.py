"""Keeping a left-to-right grammar honest on a half-filled canvas: one sweep from the committed frontier to the right.

Each denoise step:
1. `sweep` walks the decided tokens left to right. The first that the grammar refuses, and all behind it, go back to
   holes. A hole where only one token is lawful is filled; the walk goes on behind it. The first hole with a real choice
   is the frontier, and comes with its bitmask.
2. The model proposes. The frontier takes its best lawful token, always, whatever its confidence. Other holes may take a
   confident proposal, which stays provisional until a later sweep has walked over it.
3. When the sweep has no frontier left, the walked run is committed, and `closing` is asked before the next canvas.

Since a step always settles the frontier, a canvas of L tokens is done after at most L steps, and what is committed is
always a beginning of lawful text. Pure functions over `core.TokenConstraint`; the constraint is not moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quicksilver.core import TokenConstraint

Row = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A canvas after the walk. `token_ids` has None for holes."""

    token_ids: list[int | None]
    num_lawful: int
    """Length of the walked run: decided, lawful, with nothing undecided before it."""
    bitmask: Row | None
    """What may stand at the frontier, index `num_lawful`. None when the run is to be committed: it fills the canvas, it
    has ended, or room for an ending is all that is left (`closing` then has it)."""
    filled: tuple[int, ...]
    """Holes in which only one token was lawful."""
    remasked: tuple[int, ...]
    """Decided tokens that went back to holes."""


def sweep(constraint: TokenConstraint, token_ids: Sequence[int | None], num_words: int) -> Sweep:
    """One walk over a canvas; `num_words` is the width of a bitmask row."""
    canvas = list(token_ids)
    filled: list[int] = []
    remasked: list[int] = []
    while True:
        run = decided_run(canvas)
        num_lawful = constraint.legal_prefix(run)
        row = frontier_row(constraint, run[:num_lawful], len(canvas), num_words)
        if num_lawful < len(run):
            # Lawful by its bits and refused all the same: there would be no room left to end the text behind it.
            is_cut = row is not None and allows(row, run[num_lawful])
            row = None if is_cut else row
            remasked += remask_from(canvas, num_lawful)
        only = None if row is None else single_bit(row)
        if only is None:
            return Sweep(canvas, num_lawful, row, tuple(filled), tuple(remasked))
        canvas[num_lawful] = only
        filled.append(num_lawful)


def decided_run(canvas: Sequence[int | None]) -> list[int]:
    """The tokens before the first hole."""
    run: list[int] = []
    for token_id in canvas:
        if token_id is None:
            break
        run.append(token_id)
    return run


def remask_from(canvas: list[int | None], start: int) -> list[int]:
    """Turns everything from `start` on into holes; returns where a token was lost."""
    lost = [i for i in range(start, len(canvas)) if canvas[i] is not None]
    canvas[start:] = [None] * (len(canvas) - start)
    return lost


def frontier_row(constraint: TokenConstraint, run: list[int], canvas_len: int, num_words: int) -> Row | None:
    """The bitmask behind a lawful run; None at the end of the canvas or of the text."""
    if len(run) == canvas_len:
        return None
    rows = np.zeros((len(run) + 1, num_words), dtype=np.int32)
    num_rows = constraint.write_masks(run, rows.data)
    return rows[len(run)] if num_rows == len(run) + 1 else None


def allows(row: Row, token_id: int) -> bool:
    return bool(row[token_id >> 5] >> (token_id & 31) & 1)


def single_bit(row: Row) -> int | None:
    """The only token that a row allows."""
    words = np.flatnonzero(row)
    if len(words) != 1:
        return None
    bits = int(row[words[0]]) & 0xFFFFFFFF
    return None if bits & (bits - 1) else int(words[0]) * 32 + bits.bit_length() - 1


def best_lawful(scores: NDArray[np.float32], row: Row) -> int:
    """The likeliest token that a bitmask row allows."""
    flags = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(scores)].astype(np.bool_)
    return int(np.where(flags, scores, -np.inf).argmax())
