"""The device-side state of block rounds, and the kernels before and after each forward: state -> rows, and proposals ->
state. The same rules as `diffusion/confidence.py`, `diffusion/edit.py` and `diffusion/unmask.py`, without the host.

Each sequence has L rows for its canvas in a block of L positions. If the forward before completed a block, it also has
L rows for that, which write its KV and come first. The rows of all sequences follow each other without gaps. A negative
start marks an unused sequence, whose rows write nothing. In a shifted dialect the first position of a block is decided
alone, in the forward that writes the block before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.core import CommitRule, DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.diffusion.edit import MAX_EDIT_STEPS_PER_POSITION

# The rules of `confidence` that the kernel knows, by their number. The number after them is the `edit` decoder.
RULES = (CommitRule.THRESHOLD, CommitRule.STATIC, CommitRule.DYNAMIC)
EDIT = len(RULES)
# Of a round.
MAX_SEQUENCES = 128


@dataclass(frozen=True, slots=True)
class BlockState:
    """All int32, in one allocation."""

    buffer: Tensor
    start: Tensor  # (sequences,): position of the first token of the block
    step: Tensor  # (sequences,): forwards that its canvas has been through
    writes: Tensor  # (sequences,): 1 if the next forward writes the KV of the block before it
    num_fixed: Tensor  # (sequences,): leading tokens of the block that no forward changes
    num_passes: Tensor  # (sequences,): forwards since the last mask was filled (`edit`)
    rule: Tensor  # (sequences,): index in RULES, or EDIT
    threshold: Tensor  # (sequences,): as fp32 bits
    edit_threshold: Tensor  # (sequences,): as fp32 bits
    steps: Tensor  # (sequences,): of the rule, or the passes of `edit`
    before: Tensor  # (sequences, L): tokens of the block before
    block: Tensor  # (sequences, L): tokens of the block, -1 where masked
    pages: Tensor  # (sequences, max pages): page tables

    @classmethod
    def allocate(cls, count: int, block_len: int, max_pages: int, device: torch.device | str) -> BlockState:
        """A state without sequences."""
        widths = _widths(block_len, max_pages)
        buffer = torch.full((count * sum(widths),), -1, dtype=torch.int32, device=device)
        return cls._over(buffer, count, widths)

    def host_copy(self) -> BlockState:
        """A pinned copy that the host fills and copies from."""
        host = self.buffer.cpu().pin_memory() if self.buffer.is_cuda else self.buffer.clone()
        return self._over(host, len(self.start), _widths(self.block.shape[1], self.pages.shape[1]))

    @classmethod
    def _over(cls, buffer: Tensor, count: int, widths: list[int]) -> BlockState:
        parts = [part.view(count, -1) for part in buffer.split([count * width for width in widths])]
        return cls(buffer, *(part[:, 0] for part in parts[:_NUMBERS]), *parts[_NUMBERS:])

    def set_rule(self, b: int, params: DecoderParams) -> None:
        is_edit = params.name is DecoderName.EDIT
        self.rule[b] = EDIT if is_edit else RULES.index(params.rule)
        self.steps[b] = params.edit_passes if is_edit else params.steps
        self.threshold[b] = int(np.float32(params.threshold).view(np.int32))
        self.edit_threshold[b] = int(np.float32(params.edit_threshold).view(np.int32))


# Fields with one number per sequence: all but the buffer, the two blocks and the pages.
_NUMBERS = len(fields(BlockState)) - 4


def _widths(block_len: int, max_pages: int) -> list[int]:
    """int32 values per sequence of each part."""
    return [1] * _NUMBERS + [block_len, block_len, max_pages]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """What a forward of a round reads, on the device."""

    columns: Tensor  # (8, rows), in the layout of `buffers.RowBuffers`
    tiles: Tensor  # (sequences * tiles of each, 3): attention tiles of at most `tile_rows` rows
    head: Tensor  # (3, proposals): row, and position and step of the noise
    tile_rows: int


def snapshot_width(block_len: int) -> int:
    """int32 values per sequence of what a round computed: start, step, whether the block before was written, its
    tokens, and the tokens of the canvas (-1 where masked)."""
    return 3 + 2 * block_len


@triton.jit
def _store_row(out, stride, is_row, token, mask_index, position, slot, prefix_end, span_start, span_end, gate):
    """The columns of rows, in the layout of `buffers.RowBuffers`."""
    tl.store(out, token, mask=is_row)
    tl.store(out + stride, mask_index, mask=is_row)
    tl.store(out + 2 * stride, position, mask=is_row)
    tl.store(out + 3 * stride, slot, mask=is_row)
    tl.store(out + 4 * stride, prefix_end, mask=is_row)
    tl.store(out + 5 * stride, span_start, mask=is_row)
    tl.store(out + 6 * stride, span_end, mask=is_row)
    tl.store(out + 7 * stride, gate, mask=is_row)


@triton.jit
def _store_tiles(out, b, first, end, TILE_ROWS: tl.constexpr, TILES: tl.constexpr):
    """Attention tiles of the rows [first, end) of sequence b. Those that are not needed are empty."""
    for t in range(TILES):
        top = first + t * TILE_ROWS
        is_used = top < end
        tl.store(out + 3 * t, tl.where(is_used, b, 0))
        tl.store(out + 3 * t + 1, tl.where(is_used, top, 0))
        tl.store(out + 3 * t + 2, tl.where(is_used, tl.minimum(top + TILE_ROWS, end), 0))


# One compiled kernel serves rounds of all sizes.
@triton.jit(do_not_specialize=["num_rows", "max_pages", "num_heads", "mask_id", "count", "capacity"])
def _rows_kernel(
    start_at, step_at, writes_at, before_at, block_at, pages, columns, tiles, head, snapshot, num_rows, max_pages,
    num_heads, mask_id, count, capacity, L: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr, PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILES: tl.constexpr, SHIFTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs of the sequences, then one for each block that can be written, which clears rows that are not used."""
    pdl_wait_and_launch(PDL)
    b, k, every = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, COUNT)
    is_row = k < L
    writers = tl.load(writes_at + every, mask=every < count, other=0) > 0
    writers = (writers & (tl.load(start_at + every, mask=every < count, other=-1) >= 0)).to(tl.int32)
    if b >= count:
        used = tl.minimum(tl.sum(writers, 0), capacity)
        is_unused = is_row & (b - count >= used)
        nothing = k * 0
        _store_row(
            columns + b * L + k, num_rows, is_unused, nothing, nothing - 1, nothing, nothing - 1, nothing, nothing,
            nothing, nothing,
        )  # fmt: skip
    else:
        rank = tl.sum(tl.where(every < b, writers, 0), 0)
        start, step, writes = tl.load(start_at + b), tl.load(step_at + b), tl.load(writes_at + b)
        is_live = start >= 0
        is_writer = is_live & (writes > 0)
        is_written = is_writer & (rank < capacity)
        before = tl.load(before_at + b * L + k, mask=is_row, other=0)
        block = tl.load(block_at + b * L + k, mask=is_row, other=0)
        offset = b * L + L * tl.minimum(rank, capacity)
        first = offset + tl.where(is_written, L, 0)
        # Rows of the block before see the text up to its end.
        at, nothing = tl.maximum(start - L + k, 0), k * 0
        has_page = is_row & is_written & (at // PAGE < max_pages)
        page = tl.load(pages + b * max_pages + at // PAGE, mask=has_page, other=-1)
        slot = tl.where(page >= 0, page * PAGE + at % PAGE, -1)
        _store_row(
            columns + offset + k, num_rows, is_row & is_written, tl.maximum(before, 0), nothing - 1, at, slot,
            nothing + start, nothing, nothing, nothing,
        )  # fmt: skip
        # Rows of the canvas see the text before the block and each other, and write nothing.
        at = tl.maximum(start, 0) + k
        is_masked = is_live & (block < 0)
        _store_row(
            columns + first + k, num_rows, is_row, tl.where(is_masked, mask_id, tl.maximum(block, 0)),
            tl.where(is_masked, k, -1), at, nothing - 1, nothing + tl.maximum(start, 0),
            tl.where(is_live, nothing + first, 0), tl.where(is_live, nothing + first + L, 0),
            nothing + is_live.to(tl.int32),
        )  # fmt: skip
        _store_tiles(tiles + 3 * TILES * b, b, offset, first + L, TILE_ROWS, TILES)
        # Of each proposal: the row that makes it, and the position and step that key its noise.
        tl.store(head + b * L + k, tl.maximum(first + k - SHIFTED, 0), mask=is_row)
        tl.store(head + num_heads + b * L + k, at, mask=is_row)
        tl.store(head + 2 * num_heads + b * L + k, nothing + tl.maximum(step, 0), mask=is_row)
        own = snapshot + b * (3 + 2 * L)
        tl.store(own, tl.where(is_writer & (rank >= capacity), -2, start))
        tl.store(own + 1, step)
        tl.store(own + 2, writes)
        tl.store(own + 3 + k, before, mask=is_row)
        tl.store(own + 3 + L + k, block, mask=is_row)


@triton.jit
def _choose(is_open, sure, rule, threshold, steps, step, k, LENGTH: tl.constexpr):
    """The open positions that the rule decides now."""
    # How many open positions are more confident; of equal ones those to the left count.
    mine, other = tl.where(is_open, sure, -1.0)[:, None], tl.where(is_open, sure, -1.0)[None, :]
    is_before = (other > mine) | ((other == mine) & (k[None, :] < k[:, None]))
    rank = tl.sum((is_before & is_open[None, :]).to(tl.int32), 1)
    num_open = tl.sum(is_open.to(tl.int32), 0)
    turn = step % steps
    per_step = (num_open + steps - turn - 1) // (steps - turn)
    share = LENGTH // steps + (turn < LENGTH % steps).to(tl.int32)
    num_least = tl.maximum(tl.where(rule == 1, per_step, tl.where(rule == 2, share, 1)), 1)
    return is_open & ((rank < num_least) | ((rule != 1) & (sure > threshold)))


@triton.jit
def _decide_kernel(
    tokens, confidence, start_at, step_at, writes_at, fixed_at, passes_at, rule_at, threshold_at, edit_threshold_at,
    steps_at, before_at, block_at,
    L: tl.constexpr, BLOCK: tl.constexpr, SUB_BLOCK: tl.constexpr, SHIFTED: tl.constexpr, EDIT_RULE: tl.constexpr,
    EDIT_STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Decide positions of the canvas. A complete block becomes the block before the next one, which is all masks."""
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    is_row = k < L
    start, step, writes = tl.load(start_at + b), tl.maximum(tl.load(step_at + b), 0), tl.load(writes_at + b)
    is_edit, steps = tl.load(rule_at + b) == EDIT_RULE, tl.maximum(tl.load(steps_at + b), 1)
    num_fixed, passes = tl.maximum(tl.load(fixed_at + b), 0), tl.maximum(tl.load(passes_at + b), 0)
    threshold = tl.load(threshold_at + b).to(tl.float32, bitcast=True)
    edit_threshold = tl.load(edit_threshold_at + b).to(tl.float32, bitcast=True)
    block = tl.load(block_at + b * L + k, mask=is_row, other=0)
    proposed = tl.load(tokens + b * L + k, mask=is_row, other=0)
    sure = tl.load(confidence + b * L + k, mask=is_row, other=0).to(tl.float32, bitcast=True)
    is_masked = is_row & (block < 0)
    part = k // SUB_BLOCK
    is_open = is_masked & (is_edit | (part == tl.min(tl.where(is_masked, part, BLOCK), 0)))
    is_seed = (writes > 0) & (start >= 0) if SHIFTED else start < -1
    is_open = is_open & ((k == 0) | (is_seed == 0))
    is_chosen = _choose(is_open, sure, tl.load(rule_at + b), threshold, steps, step, k, SUB_BLOCK)
    is_old = is_row & (block >= 0) & (k >= num_fixed)
    may_edit = is_edit & (step < EDIT_STEPS * (L - num_fixed))
    is_changed = is_chosen | (is_old & (proposed != block) & (sure > edit_threshold) & may_edit)
    decided = tl.where(is_changed, proposed, block)
    num_masks = tl.sum(is_masked.to(tl.int32), 0)
    num_left = tl.sum((is_masked & (is_chosen == 0)).to(tl.int32), 0)
    passes = tl.where(num_masks > 0, 0, passes + 1)
    is_done = ((num_left == 0) & (passes >= steps)) | (tl.sum(is_changed.to(tl.int32), 0) == 0)
    is_complete = tl.where(is_edit, is_done, num_left == 0)
    is_new = is_complete | is_seed
    if start >= 0:
        tl.store(before_at + b * L + k, decided, mask=is_row & is_complete)
        tl.store(block_at + b * L + k, tl.where(is_complete, -1, decided), mask=is_row)
        tl.store(writes_at + b, is_complete.to(tl.int32))
        tl.store(start_at + b, tl.where(is_complete, start + L, start))
        tl.store(step_at + b, tl.where(is_new, 0, step + 1))
        tl.store(passes_at + b, tl.where(is_new, 0, passes))
        tl.store(fixed_at + b, tl.where(is_complete, 0, num_fixed))


def write_block_rows(
    state: BlockState, capacity: int, rows: BlockRows, snapshot: Tensor, page_size: int, dialect: Dialect
) -> None:
    """Fill the rows of a round in which up to `capacity` sequences write a block. If more would, the snapshot of those
    for which there are no rows begins with -2. `snapshot` receives what the forward computes (`snapshot_width`)."""
    count, block_len = state.block.shape
    _rows_kernel[(count + capacity,)](
        state.start, state.step, state.writes, state.before, state.block, state.pages, rows.columns, rows.tiles,
        rows.head, snapshot, rows.columns.shape[1], state.pages.shape[1], rows.head.shape[1], dialect.mask_id, count,
        capacity,
        L=block_len, BLOCK=triton.next_power_of_2(block_len), COUNT=MAX_SEQUENCES, PAGE=page_size,
        TILE_ROWS=rows.tile_rows, TILES=len(rows.tiles) // count, SHIFTED=int(dialect.is_shifted), num_warps=1,
        **pdl_options(),
    )  # fmt: skip


def decide_blocks(state: BlockState, results: Tensor, dialect: Dialect) -> None:
    """`results` (tokens, confidence, ...; proposals): a proposal for each position of the blocks."""
    count, block_len = state.block.shape
    _decide_kernel[(count,)](
        results[0], results[1], state.start, state.step, state.writes, state.num_fixed, state.num_passes, state.rule,
        state.threshold, state.edit_threshold, state.steps, state.before, state.block,
        L=block_len, BLOCK=triton.next_power_of_2(block_len), SUB_BLOCK=dialect.sub_block_len or block_len,
        SHIFTED=dialect.is_shifted, EDIT_RULE=EDIT, EDIT_STEPS=MAX_EDIT_STEPS_PER_POSITION, num_warps=4,
        **pdl_options(),
    )  # fmt: skip
