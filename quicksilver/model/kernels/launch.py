"""How kernels are launched: one after the other, or each already waiting on the chip when the one before it ends.

With overlap every kernel first waits for its predecessor's memory, so the order of effects is the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

OVERLAP = False
"""Programmatic dependent launch (Hopper and later): hides launch latency inside a graph."""


@triton.jit
def wait_turn(OVERLAPS: tl.constexpr):
    """First line of every kernel: see all that the kernel before wrote, and let the next one get ready."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def overlap() -> dict[str, bool]:
    """Launch options, the same for every kernel."""
    return {"OVERLAPS": True, "launch_pdl": True} if OVERLAP else {"OVERLAPS": False}
