"""Pairs of a row and an expert, grouped by expert and cut into tiles on the device, without a transfer to the host.

Every expert has a list of its pairs, filled through a counter per expert. The order of a list may differ between two
runs and changes no result, because each pair is computed in its own column of the MMA. The program that finishes last
turns the counters into tiles of one expert each, and sets them back to zero for the next launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch

_COUNT_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Lists of pairs by expert, and tiles of at most `height` pairs. The shared expert, if any, is the last one."""

    pairs: Tensor  # (experts, capacity) int32
    records: Tensor  # (max_tiles, 4) int32: expert, first and end of its list's part, unused
    num_tiles: Tensor  # (1,) int32
    counts: Tensor  # (experts,) int32, zero between launches
    arrived: Tensor  # int32 counters of finished programs, zero between launches
    height: int

    @classmethod
    def allocate(
        cls, num_rows: int, num_experts: int, num_pairs: int, height: int, device: torch.device | str
    ) -> ExpertTiles:
        """For `num_pairs` pairs over `num_experts` experts; a row has an expert at most once."""
        max_tiles = min(num_pairs, num_experts + num_pairs // height)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        num_programs = triton.cdiv(num_rows, 16) + 1
        return cls(
            ints(num_experts, num_rows), ints(max_tiles, 4), ints(1), ints(num_experts), ints(num_programs), height
        )

    @property
    def max_tiles(self) -> int:
        """An upper bound that depends on shapes only; programs of tiles that do not exist return at once."""
        return len(self.records)


@triton.jit
def add_pairs(counts, pairs, capacity, expert, pair, is_pair):
    """Append pairs to the lists of their experts. A list cannot overflow: of NaN scores a row may have an expert more
    than once."""
    place = tl.atomic_add(counts + expert, 1, mask=is_pair, sem="relaxed", scope="gpu")
    tl.store(pairs + expert.to(tl.int64) * capacity + place, pair, mask=is_pair & (place < capacity))


@triton.jit
def is_last_program(arrived, num_programs):
    """Whether all other programs have stored what they did before they called it; resets the counter."""
    tl.debug_barrier()  # all threads have stored before one thread signals
    is_last = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == num_programs - 1
    if is_last:
        tl.store(arrived, 0)
    return is_last


@triton.jit
def cut_lists(counts, records, num_tiles, capacity, num_experts, EXPERTS: tl.constexpr, HEIGHT: tl.constexpr):
    """Tiles of every expert's list, in the order of experts."""
    e = tl.arange(0, EXPERTS)
    is_expert = e < num_experts
    count = tl.load(counts + e, mask=is_expert, other=0, cache_modifier=".cg")
    count = tl.minimum(count, capacity)
    tl.debug_barrier()  # a small array is held by several threads
    tl.store(counts + e, tl.zeros_like(count), mask=is_expert)
    tiles_of = (count + HEIGHT - 1) // HEIGHT
    first_tile = tl.cumsum(tiles_of, 0) - tiles_of
    tl.store(num_tiles, tl.sum(tiles_of, 0))
    for index in range(tl.max(tiles_of, 0)):
        at = records + 4 * (first_tile + index)
        is_tile = index < tiles_of
        tl.store(at, e, mask=is_tile)
        tl.store(at + 1, tl.zeros_like(e) + index * HEIGHT, mask=is_tile)
        tl.store(at + 2, tl.minimum(count, (index + 1) * HEIGHT), mask=is_tile)


@triton.jit(do_not_specialize=["capacity", "num_pairs"])
def _group_kernel(
    chosen, counts, pairs, arrived, records, num_tiles, num_pairs, capacity, num_experts,
    BLOCK: tl.constexpr, EXPERTS: tl.constexpr, HEIGHT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1).to(tl.int32)
    is_pair = (expert >= 0) & (expert < num_experts)
    add_pairs(counts, pairs, capacity, tl.where(is_pair, expert, 0), pair, is_pair)
    if is_last_program(arrived, tl.num_programs(0)):
        cut_lists(counts, records, num_tiles, capacity, num_experts, EXPERTS, HEIGHT)


def group_pairs(chosen: Tensor, num_experts: int, tiles: ExpertTiles) -> ExpertTiles:
    """Fill `tiles` from `chosen`, (rows, places) expert ids; -1 is no expert."""
    _group_kernel[(triton.cdiv(chosen.numel(), _COUNT_BLOCK),)](
        chosen, tiles.counts, tiles.pairs, tiles.arrived, tiles.records, tiles.num_tiles, chosen.numel(),
        tiles.pairs.shape[1], num_experts,
        BLOCK=_COUNT_BLOCK, EXPERTS=triton.next_power_of_2(num_experts), HEIGHT=tiles.height, num_warps=4,
        **pdl_options(),
    )  # fmt: skip
    return tiles
