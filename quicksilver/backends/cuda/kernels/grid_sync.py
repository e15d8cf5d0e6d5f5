"""How the programs of one launch wait for each other. All of them must be on the chip at the same time.

Those with work in a part wait for those who had work in the part before it; all meeting each time would have more
programs knock at one counter. What was stored before is visible past the first-level cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

EMBED, QKV, ATTEND, OUTPUT, GATE, DOWN, LEAVE = (tl.constexpr(i) for i in range(7))
"""The parts of a forward, each with a counter; the last counts who is done."""
LINE = tl.constexpr(32)
"""Counters lie in memory lines of their own."""
NUM_COUNTERS = 7 * 32


@triton.jit
def start_part(bell, before, program, items, target):
    """Goes on when the part before is done, `target` programs of it since the launch began; `items` are those of the
    part to start."""
    if program < items:
        while tl.load(bell + before * LINE, volatile=True) < target:
            pass
        tl.debug_barrier()


@triton.jit
def finish_part(bell, mine, program, items):
    """This program's share of a part is stored."""
    if program < items:
        tl.debug_barrier()
        tl.atomic_add(bell + mine * LINE, 1, sem="release", scope="gpu")


@triton.jit
def leave(bell, arrived, num_arrived, PROGRAMS: tl.constexpr):
    """The last program to leave sets the counters back for the next launch, and those of `arrived` that count on from
    layer to layer."""
    tl.debug_barrier()
    if tl.atomic_add(bell + LEAVE * LINE, 1, sem="acq_rel", scope="gpu") == PROGRAMS - 1:
        for part in tl.static_range(7):
            tl.store(bell + part * LINE, 0)
        for i in range(num_arrived):
            tl.store(arrived + i, 0)
