"""Keeping a left-to-right grammar honest on a half-filled canvas: one sweep from the committed frontier to the right.

Each denoise step:
1. `sweep` walks the decided tokens left to right. The first that the grammar refuses, and all behind it, go back to
   holes. What must follow the decided run is filled in; the walk goes on behind it. The first hole with a real choice
   is the frontier.
2. The rows up to the frontier are masked by `write_masks`, and the model proposes. The frontier takes its proposal,
   always, whatever its confidence. Other holes may take a confident proposal, which stays provisional until a later
   sweep has walked over it.
3. When no hole is left, or the frontier's own proposal was refused for want of room behind it, the run is committed,
   and `closing` is asked before the next canvas.

Since a step always settles the frontier, a canvas is done after finitely many steps, and what is committed is always a
beginning of lawful text. Pure functions over `core.TokenConstraint`; the constraint is not moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.core import TokenConstraint


def sweep(constraint: TokenConstraint, token_ids: Sequence[int | None]) -> list[int | None]:
    """The canvas after one walk; None for holes."""
    canvas = list(token_ids)
    num_before = -1
    while True:
        run = decided_run(canvas)
        num_lawful = constraint.legal_prefix(run)
        if num_lawful < len(run):
            canvas[num_lawful:] = [None] * (len(canvas) - num_lawful)
        # Certain text for which there is no room left is not filled in twice.
        forced = constraint.forced(run[:num_lawful]) if num_lawful > num_before else []
        if not forced or num_lawful == len(canvas):
            return canvas
        end = min(num_lawful + len(forced), len(canvas))
        canvas[num_lawful:end] = forced[: end - num_lawful]
        num_before = num_lawful


def decided_run(canvas: Sequence[int | None]) -> list[int]:
    """The tokens before the first hole."""
    run: list[int] = []
    for token_id in canvas:
        if token_id is None:
            break
        run.append(token_id)
    return run
