"""Work sharing between the threads of one compiled call: phases of numbered chunks with atomic counters.

The chunks of a phase are divided into one range per thread. A thread claims the chunks of its own range in order, so
that what it prefetches is what it processes next; then it claims those that are left in the ranges of others. A phase
is complete when all its chunks are, whichever threads ran them. So a thread that starts late, or that the system
suspends between two chunks, does not delay the others. The counters belong to one call, because a late thread may still
read them while the next call runs.
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
from quicksilver.backends.cpu.llvm import I32, I64, Builder, Value, call, const_i64

# (phases, threads + 1, 8), a cache line each: the number of claimed chunks of every range, then of completed chunks.
PhaseCounters = NDArray[np.int64]
_LINE_BYTES = 64
# Chunks per thread: if one thread is slow, the others take the chunks that it has not claimed.
_CHUNKS_PER_THREAD = 8
# A waiting thread polls with `pause` instructions (about 10 ns each) this often, then also yields the processor: the
# thread that it waits for may need it.
_POLLS_BEFORE_YIELD = 64
# After this many polls it sleeps between them: the other thread has lost its processor to another process.
_POLLS_BEFORE_SLEEP = 320
_SLEEP_US = 50


def new_counters(num_phases: int, num_threads: int) -> PhaseCounters:
    return np.zeros((num_phases, num_threads + 1, 8), np.int64)


@inner
def num_chunks(count: int, num_threads: int) -> int:
    """Into how many chunks `count` items are divided."""
    return min(count, _CHUNKS_PER_THREAD * num_threads) if num_threads > 1 else min(count, 1)


@inner
def chunk_range(count: int, chunk: int, chunks: int) -> tuple[int, int]:
    """First item and end of a chunk, if `count` items are divided into `chunks`."""
    return count * chunk // chunks, count * (chunk + 1) // chunks


@inner
def claim(counters: PhaseCounters, phase: int, thread: int, chunks: int) -> int:
    """The number of the next unclaimed chunk of a phase with `chunks` chunks; `chunks` if there is none."""
    num_ranges = counters.shape[1] - 1
    for distance in range(num_ranges):
        owner = (thread + distance) % num_ranges
        first, end = chunk_range(chunks, owner, num_ranges)
        if first < end:
            chunk = first + _fetch_add_one(_counter(counters, phase, owner))
            if chunk < end:
                return chunk
    return chunks


@inner
def complete(counters: PhaseCounters, phase: int) -> None:
    """Report a claimed chunk as done."""
    _fetch_add_one(_counter(counters, phase, counters.shape[1] - 1))


@inner
def wait_for(counters: PhaseCounters, phase: int, chunks: int) -> None:
    """Wait until all chunks of the phase are complete; their writes are visible afterwards."""
    _poll_until(_counter(counters, phase, counters.shape[1] - 1), chunks)


@inner
def _counter(counters: PhaseCounters, phase: int, index: int) -> int:
    """The address of a counter."""
    return address_of(counters) + _LINE_BYTES * (phase * counters.shape[1] + index)


@intrinsic
def _fetch_add_one(context: Any, address: Any) -> Any:
    """Atomically add one; return the value before."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), const_i64(1), "acq_rel")

    return types.intp(types.intp), codegen


@intrinsic
def _poll_until(context: Any, address: Any, target: Any) -> Any:
    """Poll the counter at `address` until it reaches `target`: first busily, then yielding, then sleeping."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        counter, before = b.inttoptr(args[0], I64.as_pointer()), b.block
        poll, pause, backoff, offer, sleep, again, done = (b.append_basic_block() for _ in range(7))
        b.branch(poll)
        b.position_at_end(poll)
        polls = b.phi(I64)
        polls.add_incoming(const_i64(0), before)
        b.cbranch(b.icmp_signed("<", b.load_atomic(counter, "acquire", 8), args[1]), pause, done)
        b.position_at_end(pause)
        call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        b.cbranch(b.icmp_signed(">", polls, const_i64(_POLLS_BEFORE_YIELD)), backoff, again)
        b.position_at_end(backoff)
        b.cbranch(b.icmp_signed(">", polls, const_i64(_POLLS_BEFORE_SLEEP)), sleep, offer)
        b.position_at_end(offer)
        call(b, "sched_yield", I32, [])
        b.branch(again)
        b.position_at_end(sleep)
        call(b, "usleep", I32, [ir.Constant(I32, _SLEEP_US)])
        b.branch(again)
        b.position_at_end(again)
        polls.add_incoming(b.add(polls, const_i64(1)), again)
        b.branch(poll)
        b.position_at_end(done)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen
