"""Paged attention of tiles with few rows: one launch that also merges the splits. For batches of many sequences.

The number of splits of a tile depends on its own number of keys alone: a split has at least `split_keys` keys and is
one run of key blocks. A tile with one split stores its result at once. Otherwise every split stores its partial
softmax, and the last one to finish merges them in ascending order, so a row's result does not depend on the rest of the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import (
    LOG2_E,
    AttentionShape,
    AttentionWorkspace,
    RowTables,
    accumulate_prefix,
    accumulate_span,
)
from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms
from quicksilver.backends.cuda.kernels.row_kernels import to_input_format
from quicksilver.backends.cuda.kernels.weight_streaming import NUM_SMS

# Programs of a launch if all tiles have many keys: about four per SM. At least two splits, so that one long sequence
# among many short ones does not decide the time.
_MAX_PROGRAMS, _MIN_SPLITS, _MAX_SPLITS = 512, 2, 16
# Fewest keys of a split by the least number of tiles: a split that is merged costs about as much as 256 keys, which
# pays only where SMs would be idle.
_SPLIT_KEYS = ((512, 1024), (NUM_SMS, 512), (0, 128))
# Query rows of the smallest MMA.
_SMALLEST_BLOCK_M = 16
# Rows of a tile, with the heads that share its keys stacked, up to which this kernel is used.
_LARGEST_BLOCK_M = 64
_KEY_BLOCK, _NUM_STAGES = 64, 2


def decode_shape(
    num_heads: int, num_kv_heads: int, head_dim: int, num_sequences: int, rows_each: int
) -> AttentionShape | None:
    """The tiling of `num_sequences` sequences with up to `rows_each` rows; None if their tiles are too large."""
    block_m = max(_SMALLEST_BLOCK_M, triton.next_power_of_2(rows_each * (num_heads // num_kv_heads)))
    if block_m > _LARGEST_BLOCK_M:
        return None
    splits = _MAX_PROGRAMS // (num_sequences * num_kv_heads)
    splits = max(_MIN_SPLITS, min(_MAX_SPLITS, 1 << max(splits.bit_length() - 1, 0)))
    split_keys = next(keys for count, keys in _SPLIT_KEYS if num_sequences * num_kv_heads >= count)
    return AttentionShape(num_heads, num_kv_heads, head_dim, block_m, splits, split_keys)


@dataclass(frozen=True, slots=True)
class RawQkv:
    """Rows before head norms, RoPE and cache write."""

    sums: Tensor  # (splits, rows, outputs) fp32, or (1, rows, outputs) of any dtype
    bias: Tensor | None  # that is not in the sums
    angles: Tensor  # `rope_kernel.angle_table`, of a full rotation
    slots: Tensor  # cache slot of each row, or -1
    norms: HeadNorms | None = None


@triton.jit
def _store(
    out, steps, y, at_head, row, head, d, is_row, num_rows, D: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr
):
    """Store attended heads (queries, D) in the format of the next linear's input. `head` is that of each query."""
    if FP8:
        step = fp8_step(tl.max(tl.abs(y), 1))
        tl.store(steps + head * num_rows + row, step, mask=is_row)
        y = y / step[:, None]
    tl.store(
        out + at_head[:, None] * D + d[None, :], to_input_format(y, out.dtype.element_ty, SCALE), mask=is_row[:, None]
    )


@triton.jit
def _rotated_heads(
    sums, bias, row, head, is_row, cos, sin, gain, eps, num_rows, dtype: tl.constexpr,
    ALL_HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Heads of queries or keys (count, D) from the sums of the splits of qkv: total, bias, norm, RoPE. Rounded where
    the network rounds."""
    i = tl.arange(0, D // 2)
    at = ((row.to(tl.int64) * ALL_HEADS + head) * D)[:, None] + i[None, :]
    mask = is_row[:, None]
    left = tl.load(sums + at, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(sums + at + D // 2, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        plane = at + split * num_rows.to(tl.int64) * (ALL_HEADS * D)
        left += tl.load(sums + plane, mask=mask, other=0.0)
        right += tl.load(sums + plane + D // 2, mask=mask, other=0.0)
    if BIAS:
        of_head = bias + (head * D)[:, None] + i[None, :]
        left += tl.load(of_head, mask=mask, other=0.0).to(tl.float32)
        right += tl.load(of_head + D // 2, mask=mask, other=0.0).to(tl.float32)
    left, right = left.to(dtype).to(tl.float32), right.to(dtype).to(tl.float32)
    if NORM:
        inv_rms = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)[:, None]
        left = left * inv_rms * tl.load(gain + i).to(tl.float32)[None, :]
        right = right * inv_rms * tl.load(gain + D // 2 + i).to(tl.float32)[None, :]
    both = tl.join(left * cos[None, :] - right * sin[None, :], right * cos[None, :] + left * sin[None, :])
    return tl.reshape(tl.permute(both, (0, 2, 1)), (left.shape[0], D)).to(dtype)


@triton.jit
def _value(
    sums, bias, row, head, num_rows, dtype: tl.constexpr,
    ALL_HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """A value head (D,) from the sums of the splits of qkv."""
    d = tl.arange(0, D)
    at = (row.to(tl.int64) * ALL_HEADS + head) * D + d
    total = tl.load(sums + at).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * num_rows.to(tl.int64) * (ALL_HEADS * D) + at)
    if BIAS:
        total += tl.load(bias + head * D + d).to(tl.float32)
    return total.to(dtype)


@triton.jit
def _merged(
    part_acc, part_top, part_total, at_head, d, is_row, used, part_stride, BLOCK_M: tl.constexpr, D: tl.constexpr
):
    """Merge the partial softmax of `used` splits. Loads bypass L1, which may hold stale data."""
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for split in tl.range(0, used):
        at = split * part_stride + at_head
        own_top = tl.load(part_top + at, mask=is_row, other=float("-inf"), cache_modifier=".cg")
        own_total = tl.load(part_total + at, mask=is_row, other=0.0, cache_modifier=".cg")
        own_acc = tl.load(
            part_acc + at[:, None] * D + d[None, :], mask=is_row[:, None], other=0.0, cache_modifier=".cg"
        )
        new_top = tl.maximum(top, own_top)
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        before, own = tl.exp2(top - finite_top), tl.exp2(own_top - finite_top)
        total = total * before + own_total * own
        acc = acc * before[:, None] + own_acc * own[:, None]
        top = new_top
    return acc / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _write_newest(
    sums, bias, row, kv_head, slot, cos, sin, gain, eps, num_rows, k_cache, v_cache,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Write the key and value of a row to the cache."""
    ALL_HEADS: tl.constexpr = HEADS + 2 * KV_HEADS
    dtype: tl.constexpr = k_cache.dtype.element_ty
    one, d = tl.arange(0, 1), tl.arange(0, D)
    key = _rotated_heads(
        sums, bias, row + one, HEADS + kv_head + one, one >= 0, cos, sin, gain, eps, num_rows, dtype,
        ALL_HEADS, D, SPLITS, BIAS, NORM,
    )  # fmt: skip
    value = _value(sums, bias, row, HEADS + KV_HEADS + kv_head, num_rows, dtype, ALL_HEADS, D, SPLITS, BIAS)
    at = (slot * KV_HEADS + kv_head) * D
    tl.store(k_cache + at + one[:, None] + d[None, :], key)
    tl.store(v_cache + at + d, value)
    tl.debug_barrier()  # this program reads them next


@triton.jit
def _raw_query(
    sums, bias, angles, slots, q_gain, k_gain, eps, row, head, is_row, first, kv_head, num_keys, is_last, num_rows,
    k_cache, v_cache,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """The queries of row `first`, whose last key is at `num_keys` - 1; the program of the last keys also writes it."""
    angle = angles + (num_keys - 1).to(tl.int64) * D + tl.arange(0, D // 2)
    cos, sin = tl.load(angle), tl.load(angle + D // 2)
    slot = tl.load(slots + first).to(tl.int64)
    if is_last & (slot >= 0):
        _write_newest(
            sums, bias, first, kv_head, slot, cos, sin, k_gain, eps, num_rows, k_cache, v_cache,
            HEADS, KV_HEADS, D, SPLITS, BIAS, NORM,
        )  # fmt: skip
    return _rotated_heads(
        sums, bias, row, head, is_row, cos, sin, q_gain, eps, num_rows, k_cache.dtype.element_ty,
        HEADS + 2 * KV_HEADS, D, SPLITS, BIAS, NORM,
    )  # fmt: skip


@triton.jit
def _finish(
    acc, top, total, split, used, counter, out, steps, part_acc, part_top, part_total, row, head, is_row, num_rows,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, SPLITS: tl.constexpr, INPUT_SCALE: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Store the result of a tile with one split, or that of a split; the last of these merges them."""
    d, at_head = tl.arange(0, D), row.to(tl.int64) * HEADS + head
    if used == 1:
        y = acc / tl.where(total > 0, total, 1.0)[:, None]
        _store(out, steps, y, at_head, row, head, d, is_row, num_rows, D, INPUT_SCALE, FP8)
    elif SPLITS > 1:
        part_stride = num_rows * HEADS
        at_part = split * part_stride + at_head
        tl.store(part_acc + at_part[:, None] * D + d[None, :], acc, mask=is_row[:, None])
        tl.store(part_top + at_part, top, mask=is_row)
        tl.store(part_total + at_part, total, mask=is_row)
        tl.debug_barrier()  # all threads have stored before one thread signals
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == used - 1:
            y = _merged(part_acc, part_top, part_total, at_head, d, is_row, used, part_stride, BLOCK_M, D)
            _store(out, steps, y, at_head, row, head, d, is_row, num_rows, D, INPUT_SCALE, FP8)
            tl.store(counter, 0)  # for the next launch


@triton.jit
def _decode_kernel(
    q, k, v, k_cache, v_cache, out, steps, part_acc, part_top, part_total, arrived,
    prefix_end, span_start, span_end, tiles, pages, sums, bias, angles, slots, q_gain, k_gain, head_eps,
    scale, row_stride, max_pages, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, MIN_BLOCKS: tl.constexpr,
    INPUT_SCALE: tl.constexpr, FP8: tl.constexpr, QKV_SPLITS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A program is one split of one KV head of one tile. With QKV_SPLITS a tile is one row, whose qkv are the totals of
    these splits, and the program of the last keys writes the new key and value."""
    # The first splits of all tiles come first: they have work, and consecutive programs run on different SMs.
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    segment, first, end = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, D)
    row, head = first + m // GROUP, kv_head * GROUP + m % GROUP
    is_row = (row < end) & (m < (BLOCK_M // GROUP) * GROUP)
    visible_end = tl.load(prefix_end + row, mask=is_row, other=0)
    longest = tl.max(visible_end, 0)
    num_blocks = tl.cdiv(longest, BLOCK_N)
    # Blocks of each split, and the splits that have blocks.
    depth = tl.maximum(tl.cdiv(num_blocks, SPLITS), MIN_BLOCKS)
    used = tl.maximum(tl.cdiv(num_blocks, depth), 1)
    has_work = (first < end) & (split < used) & ((longest > 0) | (QKV_SPLITS == 0))
    # Programs without work exit at once. One program always waits, because the next kernel depends on the completion of
    # the one before this. The tables were written before that kernel.
    if has_work | ((tile == 0) & (split == 0)):
        pdl_wait_and_launch(PDL)
    if has_work:
        if QKV_SPLITS == 0:
            q_at = row.to(tl.int64)[:, None] * row_stride + (head * D)[:, None] + d[None, :]
            q_tile = tl.load(q + q_at, mask=is_row[:, None], other=0.0)
        else:
            q_tile = _raw_query(
                sums, bias, angles, slots, q_gain, k_gain, head_eps, row, head, is_row, first, kv_head, longest,
                split == used - 1, num_rows, k_cache, v_cache, HEADS, KV_HEADS, D, QKV_SPLITS, BIAS, NORM,
            )  # fmt: skip
        top, total = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        begin = split * depth
        top, total, acc = accumulate_prefix(
            q_tile, segment, kv_head, begin, tl.minimum(begin + depth, num_blocks), visible_end, longest, 0, pages,
            k_cache, v_cache, pages, max_pages, top, total, acc, scale, KV_HEADS, D, PAGE, BLOCK_N, 1, False,
        )  # fmt: skip
        if QKV_SPLITS == 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
            if split == used - 1:
                from_row = tl.load(span_start + row, mask=is_row, other=0)
                to_row = tl.load(span_end + row, mask=is_row, other=0)
                top, total, acc = accumulate_span(
                    q_tile, kv_head, from_row, to_row, k, v, row_stride, top, total, acc, scale, D, BLOCK_N
                )
        _finish(
            acc, top, total, split, used, arrived + first * KV_HEADS + kv_head, out, steps, part_acc, part_top,
            part_total, row, head, is_row, num_rows, HEADS, D, BLOCK_M, SPLITS, INPUT_SCALE, FP8,
        )  # fmt: skip


def attend_decode(
    qkv: Tensor,
    caches: tuple[Tensor, Tensor],
    rows: RowTables,
    workspace: AttentionWorkspace,
    raw: RawQkv | None = None,
) -> Tensor:
    """As `attend_paged`, for a workspace with a shape of `decode_shape`. With `raw` qkv is not read: every sequence has
    one row, whose key and value are written too."""
    shape, num_rows = workspace.shape, qkv.shape[0]
    found = raw or RawQkv(qkv, None, qkv, qkv)
    norms = found.norms or HeadNorms(qkv, qkv, 0.0)
    min_blocks = triton.cdiv(shape.split_keys, _KEY_BLOCK)
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    _decode_kernel[(len(rows.tiles), kv_heads, shape.splits)](
        qkv, qkv[:, heads:], qkv[:, heads + kv_heads :], *caches, workspace.out,
        workspace.out if workspace.steps is None else workspace.steps,
        workspace.acc, workspace.top, workspace.total, workspace.arrived,
        rows.prefix_end, rows.span_start, rows.span_end, rows.tiles, rows.pages,
        found.sums, qkv if found.bias is None else found.bias, found.angles, found.slots, norms.q, norms.k, norms.eps,
        shape.head_dim**-0.5 * LOG2_E, qkv.stride(0), rows.pages.stride(0), num_rows,
        HEADS=heads, KV_HEADS=kv_heads, D=shape.head_dim, PAGE=rows.page_size,
        BLOCK_M=shape.block_m, BLOCK_N=_KEY_BLOCK, SPLITS=shape.splits, MIN_BLOCKS=min_blocks,
        INPUT_SCALE=workspace.input_scale, FP8=workspace.steps is not None,
        QKV_SPLITS=0 if raw is None else len(raw.sums), BIAS=found.bias is not None, NORM=found.norms is not None,
        num_warps=2 if shape.block_m <= 32 else 4, num_stages=_NUM_STAGES, **pdl_options(),
    )  # fmt: skip
    return workspace.out.view(num_rows, -1)
