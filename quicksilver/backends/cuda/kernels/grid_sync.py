"""Barriers between the phases of a persistent kernel. All CTAs must be resident at the same time.

CTAs with work in a phase wait for the CTAs that had work in the previous one; a grid-wide barrier would contend on one
counter. Earlier stores are visible to loads that bypass L1.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The phases of a forward, each with a counter. EXIT counts CTAs that have finished.
EMBED, QKV, ATTEND, OUTPUT, GATE, DOWN, EXIT = (tl.constexpr(i) for i in range(7))
# int32 values per counter: each has a cache line of its own.
COUNTER_STRIDE = tl.constexpr(32)
NUM_COUNTERS = 7 * 32


@triton.jit
def wait_phase(barrier, previous, cta, num_items, target):
    """Wait until `target` CTAs, counted from the start of the launch, have finished the phase `before`. `items`: work
    items of the phase to start."""
    if cta < num_items:
        while tl.load(barrier + previous * COUNTER_STRIDE, volatile=True) < target:
            pass
        tl.debug_barrier()


@triton.jit
def signal_phase(barrier, phase, cta, num_items):
    """Signal that this CTA's share of a phase is stored."""
    if cta < num_items:
        tl.debug_barrier()
        tl.atomic_add(barrier + phase * COUNTER_STRIDE, 1, sem="release", scope="gpu")


@triton.jit
def exit_kernel(barrier, arrived, num_arrived, CTAS: tl.constexpr):
    """Count this CTA as finished. The last one resets the counters for the next launch, including those of `arrived`
    that accumulate over layers."""
    tl.debug_barrier()
    if tl.atomic_add(barrier + EXIT * COUNTER_STRIDE, 1, sem="acq_rel", scope="gpu") == CTAS - 1:
        for part in tl.static_range(7):
            tl.store(barrier + part * COUNTER_STRIDE, 0)
        for i in range(num_arrived):
            tl.store(arrived + i, 0)
