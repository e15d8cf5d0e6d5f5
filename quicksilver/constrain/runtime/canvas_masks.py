"""Applies a left-to-right grammar to a partly decided canvas.

Each denoising step:
1. `sweep` reads the decided tokens from left to right. The first one that the grammar refuses, and all after it, become
   undecided again. Forced tokens after the decided run are filled in. The first undecided position with a choice is the
   frontier.
2. `write_masks` masks the rows up to the frontier, and the model proposes tokens. The frontier always takes its
   proposal. Other positions may take a confident proposal, which stays provisional until a later sweep accepts it.
3. The run is committed when every position is decided, or when the proposal of the frontier was refused because too few
   tokens are left after it. `closing` is then called before the next canvas.

Every step decides the frontier, so a canvas ends after finitely many steps. Committed text is always a valid prefix.
The functions use `core.TokenConstraint` and do not advance it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.core import TokenConstraint


def sweep(constraint: TokenConstraint, token_ids: Sequence[int | None]) -> list[int | None]:
    """The canvas after one pass; None for undecided positions."""
    canvas = list(token_ids)
    num_before = -1
    while True:
        run = decided_run(canvas)
        num_legal = constraint.legal_prefix(run)
        if num_legal < len(run):
            canvas[num_legal:] = [None] * (len(canvas) - num_legal)
        # Forced text that the remaining tokens do not allow is not filled in twice.
        forced = constraint.forced(run[:num_legal]) if num_legal > num_before else []
        if not forced or num_legal == len(canvas):
            return canvas
        end = min(num_legal + len(forced), len(canvas))
        canvas[num_legal:end] = forced[: end - num_legal]
        num_before = num_legal


def decided_run(canvas: Sequence[int | None]) -> list[int]:
    """The tokens before the first undecided position."""
    run: list[int] = []
    for token_id in canvas:
        if token_id is None:
            break
        run.append(token_id)
    return run
