"""How kernels are launched: one after the other, or each already waiting on the chip when the one before it ends.

With overlap every kernel first waits for its predecessor's memory, so the order of effects is the same; only what no
kernel writes (weights, and a head's table of biases) is asked for before the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton
import triton.language as tl

_overlaps = 0
_EARLY = 2
"""The next launch is let in before this one waits: it has much to read that nobody writes."""


@triton.jit
def wait_turn(OVERLAPS: tl.constexpr):
    """First line of every short kernel: see all that the kernel before wrote, and let the next one get ready."""
    if OVERLAPS == 2:
        tl.extra.cuda.gdc_launch_dependents()
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    if OVERLAPS == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_input(OVERLAPS: tl.constexpr):
    """As `wait_turn` where a kernel reads many weights: until `let_next` its successor would only take room."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next(OVERLAPS: tl.constexpr):
    """The next kernel may get ready: the weights are read."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(pointers):
    """Bring these lines into the second-level cache; not in the interpreter."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }", "=r,l", [pointers.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def fetch_ahead(w, rows, K, begin, LINES: tl.constexpr, OVERLAPS: tl.constexpr):
    """Before the wait: bring the first lines of these rows of a matrix into the second-level cache."""
    if OVERLAPS:
        LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth
        at = tl.minimum(begin + tl.arange(0, LINES) * LINE, K - 1)
        fetch(w + rows[:, None] * K + at[None, :])


@contextmanager
def overlapping(is_wanted: bool, *, is_early: bool = False) -> Iterator[None]:
    """Launches inside overlap where the chip can: programmatic dependent launch, from Hopper on."""
    global _overlaps
    wanted = _EARLY if is_early else 1
    before, _overlaps = _overlaps, wanted if is_wanted and _can_overlap() else 0
    try:
        yield
    finally:
        _overlaps = before


@cache
def _can_overlap() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def overlap() -> dict[str, int | bool]:
    """Launch options, the same for every kernel."""
    return {"OVERLAPS": _overlaps, "launch_pdl": True} if _overlaps else {"OVERLAPS": 0}
