"""Weights of later launches, asked for while the present one waits for its own numbers, so that memory is never idle:
they are in the second-level cache when their launch begins.

Asking changes no number and waits for nothing. Which launch of a layer asks for how much is `PLAN`; what is asked for
too early would be pushed out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

_MEGABYTE = 1 << 20
_WARPS = tl.constexpr(4)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Megabytes that each launch of a layer asks for: the first three of gate and up, one after the other, `by_gates`
    of down, `by_down` of the next layer's qkv and output each, or of the head behind the last layer."""

    by_qkv: int = 0
    by_attention: int = 0
    by_output: int = 0
    by_gates: int = 0
    by_down: int = 0


PLAN = FetchPlan()


@dataclass(frozen=True, slots=True)
class Later:
    """Two stretches of memory as (address, bytes), at addresses and of sizes that 16 divides."""

    first: tuple[int, int]
    second: tuple[int, int]

    def args(self, programs: int) -> tuple[int, ...]:
        """What `fetch_later` wants to know in a launch of so many programs."""
        share = triton.cdiv(max(self.first[1], self.second[1]), programs * _WARPS.value)
        return *self.first, *self.second, triton.cdiv(share, 128) * 128


@dataclass(frozen=True, slots=True)
class LayerLater:
    """What the launches of one layer ask for."""

    by_qkv: Later | None = None
    by_attention: Later | None = None
    by_output: Later | None = None
    by_gates: Later | None = None
    by_down: Later | None = None


def can_fetch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def plan_layer(gate_up: Tensor, down: Tensor, following: tuple[Tensor, Tensor], plan: FetchPlan) -> LayerLater:
    """`following` is what is read after this layer: the next one's qkv and output, or two halves of the head."""
    half, ends, end = len(gate_up) // 2, [0], 0
    for megabytes in (plan.by_qkv, plan.by_attention, plan.by_output):
        end = min(end + _rows(gate_up, megabytes * _MEGABYTE // 2), half)
        ends.append(end)
    pairs = [_both(gate_up[a:b], gate_up[half + a : half + b]) for a, b in pairwise(ends)]
    middle = min(_rows(down, plan.by_gates * _MEGABYTE // 2), len(down) // 2)
    first, second = (w[: _rows(w, plan.by_down * _MEGABYTE)] for w in following)
    return LayerLater(
        pairs[0], pairs[1], pairs[2], _both(down[:middle], down[middle : 2 * middle]), _both(first, second)
    )


def _rows(w: Tensor, num_bytes: int) -> int:
    return min(len(w), num_bytes // (w.shape[1] * w.element_size()))


def _both(first: Tensor, second: Tensor) -> Later | None:
    stretches = [(w.data_ptr(), w.numel() * w.element_size()) for w in (first, second)]
    is_even = all(number % 16 == 0 for stretch in stretches for number in stretch)
    return Later(stretches[0], stretches[1]) if is_even and max(first.numel(), second.numel()) else None


def later_args(later: Later | None, programs: int) -> tuple[int, ...]:
    return later.args(programs) if later else (0,) * 5


@triton.jit
def fetch_later(program, first, first_size, second, second_size, share, LATER: tl.constexpr):
    """`share` bytes of either stretch from every warp of four. Two threads of a warp ask, since the chip takes such
    requests one thread at a time."""
    if LATER:
        thread = tl.arange(0, 32 * _WARPS)
        is_first = thread % 32 == 0
        at = (program * _WARPS + thread // 32).to(tl.int64) * share
        size = tl.where(is_first, first_size, second_size) - at
        count = tl.where(thread % 32 < 2, tl.maximum(tl.minimum(size, share), 0), 0).to(tl.int32)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r", [tl.where(is_first, first, second) + at, count], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
