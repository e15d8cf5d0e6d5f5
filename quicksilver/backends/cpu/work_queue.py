"""How threads share the work of a call: phases of numbered pieces. Whoever is free takes the next piece, and a phase is
over once all its pieces are done, whoever did them.

So a thread that comes late, or that the system sent away between two pieces, holds nobody up. The counters belong to
one call: a straggler may still look at them when the next call is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.llvm import I32, I64, Builder, Value, call, word

Turns = NDArray[np.int64]
"""(phases, 16): pieces taken and, a cache line further on, pieces done."""
_PHASE_BYTES, _DONE_BYTES = 128, 64
_PIECES = 4
"""Of a thread, where there is enough to do: if one is slow, the others take what it has not begun."""
_SPINS = 64
"""Looks, of some ten nanoseconds each, before the processor is offered to others: they may be who is waited for."""
_OFFERS = 320
"""Looks before a thread sleeps between them: who is waited for so long has lost its processor to somebody else."""
_SLEEP_US = 50


def new_turns(num_phases: int) -> Turns:
    return np.zeros((num_phases, 16), np.int64)


@inner
def num_pieces(count: int, num_threads: int) -> int:
    """Into how many pieces to cut `count` things."""
    return min(count, _PIECES * num_threads) if num_threads > 1 else min(count, 1)


@inner
def share(count: int, piece: int, pieces: int) -> tuple[int, int]:
    """The first and the end of a piece's part of `count` things."""
    return count * piece // pieces, count * (piece + 1) // pieces


@inner
def take(turns: Turns, phase: int) -> int:
    """The next piece that nobody has, or a number beyond them."""
    return _add_one(address_of(turns) + _PHASE_BYTES * phase)


@inner
def finish(turns: Turns, phase: int) -> None:
    _add_one(address_of(turns) + _PHASE_BYTES * phase + _DONE_BYTES)


@inner
def wait(turns: Turns, phase: int, pieces: int) -> None:
    """Until all pieces of the phase are done; what they wrote can be read."""
    _look_until(address_of(turns) + _PHASE_BYTES * phase + _DONE_BYTES, pieces)


@intrinsic
def _add_one(context: Any, address: Any) -> Any:
    """What was there before."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), word(1), "acq_rel")

    return types.intp(types.intp), codegen


@intrinsic
def _look_until(context: Any, address: Any, wanted: Any) -> Any:
    """Until the number there is `wanted`, ever more patiently."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        counter, before = b.inttoptr(args[0], I64.as_pointer()), b.block
        look, pause, long, offer, sleep, again, done = (b.append_basic_block() for _ in range(7))
        b.branch(look)
        b.position_at_end(look)
        looks = b.phi(I64)
        looks.add_incoming(word(0), before)
        b.cbranch(b.icmp_signed("<", b.load_atomic(counter, "acquire", 8), args[1]), pause, done)
        b.position_at_end(pause)
        call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        b.cbranch(b.icmp_signed(">", looks, word(_SPINS)), long, again)
        b.position_at_end(long)
        b.cbranch(b.icmp_signed(">", looks, word(_OFFERS)), sleep, offer)
        b.position_at_end(offer)
        call(b, "sched_yield", I32, [])
        b.branch(again)
        b.position_at_end(sleep)
        call(b, "usleep", I32, [ir.Constant(I32, _SLEEP_US)])
        b.branch(again)
        b.position_at_end(again)
        looks.add_incoming(b.add(looks, word(1)), again)
        b.branch(look)
        b.position_at_end(done)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen
