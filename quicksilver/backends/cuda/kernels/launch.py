"""Programmatic dependent launch (PDL): a kernel may start before the previous one ends, and waits on the device.

Every kernel waits for the previous kernel's stores before it reads them, so results do not change. Only data that no
kernel writes (weights, and the head's bias table) is read or prefetched before the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton
import triton.language as tl

_mode = 0
# Value of PDL: each kernel launches the next one before it waits, so that a next kernel with many weights prefetches.
_LAUNCH_FIRST = 2


@triton.jit
def pdl_wait_and_launch(PDL: tl.constexpr):
    """First line of every short kernel: wait for the previous kernel and launch the next one."""
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Wait for the previous kernel. For kernels that read many weights: until `pdl_launch` the next kernel would only
    occupy registers and shared memory."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def pdl_launch(PDL: tl.constexpr):
    """Launch the next kernel. The weights have been read."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Prefetch these cache lines into L2. Not supported by the interpreter."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }", "=r,l", [pointers.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch_rows(w, rows, K, begin, LINES: tl.constexpr, PDL: tl.constexpr):
    """Prefetch the first lines of these matrix rows into L2, before the wait."""
    if PDL:
        LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth
        at = tl.minimum(begin + tl.arange(0, LINES) * LINE, K - 1)
        prefetch(w + rows[:, None] * K + at[None, :])


@contextmanager
def pdl_launches(is_on: bool, *, is_early: bool = False) -> Iterator[None]:
    """Launches inside the context use PDL if the GPU supports it (Hopper and later)."""
    global _mode
    mode = _LAUNCH_FIRST if is_early else 1
    previous, _mode = _mode, mode if is_on and _supports_pdl() else 0
    try:
        yield
    finally:
        _mode = previous


@cache
def _supports_pdl() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def pdl_options() -> dict[str, int | bool]:
    """Launch options that every kernel takes."""
    return {"PDL": _mode, "launch_pdl": True} if _mode else {"PDL": 0}
