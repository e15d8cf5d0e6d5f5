"""The products of a network in one launch: 16 columns of a matrix by a tile of rows, along the whole depth.

Either every warp goes along the whole depth, or (`BY_WARPS`) each of the four along a quarter of it: of every 64 of the
depth warp j takes the j-th 16, and the four sums are added at the end. Then a program's chain of products is a quarter
as long. Weights can be read whole before the input is there; which way they were read changes no number.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pair(
    x, w, first, second, r, worn, low, high, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr, BY_WARPS: tl.constexpr,
):  # fmt: skip
    """Two (16 columns, T rows) products; rows that wear the adapter take theirs from the second set of weights."""
    a = tl.zeros((16, T), tl.float32)
    b = tl.zeros((16, T), tl.float32)
    for kind in range(low, high + 1):
        if BY_WARPS:
            at_x = _tile(x, r, K, 0, BLOCK_K // 64)
            at_a = _tile(w + kind * plane, first, K, 0, BLOCK_K // 64)
            at_b = _tile(w + kind * plane, second, K, 0, BLOCK_K // 64)
            e, f = tl.zeros((4, 16, T), tl.float32), tl.zeros((4, 16, T), tl.float32)
            for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
                x_tile = tl.permute(tl.load(at_x + start, cache_modifier=".cg"), (0, 2, 1))
                e = tl.dot(tl.load(at_a + start), x_tile, e, input_precision="ieee")
                f = tl.dot(tl.load(at_b + start), x_tile, f, input_precision="ieee")
            c, d = tl.sum(e, 0), tl.sum(f, 0)
        else:
            k = tl.arange(0, BLOCK_K)
            at_x = x + r[:, None] * K + k[None, :]
            at_a = w + kind * plane + first[:, None] * K + k[None, :]
            at_b = w + kind * plane + second[:, None] * K + k[None, :]
            c, d = tl.zeros((16, T), tl.float32), tl.zeros((16, T), tl.float32)
            for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
                x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
                c = tl.dot(tl.load(at_a + start), x_tile, c, input_precision="ieee")
                d = tl.dot(tl.load(at_b + start), x_tile, d, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
        b = tl.where((worn == kind)[None, :], d, b)
    return a, b


@triton.jit
def single(
    x, w, first, r, worn, low, high, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr, BY_WARPS: tl.constexpr,
):  # fmt: skip
    a = tl.zeros((16, T), tl.float32)
    for kind in range(low, high + 1):
        if BY_WARPS:
            at_x, at_w = _tile(x, r, K, 0, BLOCK_K // 64), _tile(w + kind * plane, first, K, 0, BLOCK_K // 64)
            e = tl.zeros((4, 16, T), tl.float32)
            for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
                x_tile = tl.permute(tl.load(at_x + start, cache_modifier=".cg"), (0, 2, 1))
                e = tl.dot(tl.load(at_w + start), x_tile, e, input_precision="ieee")
            c = tl.sum(e, 0)
        else:
            k = tl.arange(0, BLOCK_K)
            at_x = x + r[:, None] * K + k[None, :]
            at_w = w + kind * plane + first[:, None] * K + k[None, :]
            c = tl.zeros((16, T), tl.float32)
            for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
                x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
                c = tl.dot(tl.load(at_w + start), x_tile, c, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
    return a


@triton.jit
def _tile(w, rows, K: tl.constexpr, begin: tl.constexpr, BLOCKS: tl.constexpr):
    """Pointers (4 warps, rows, 16 of each block) to `BLOCKS` blocks of 64 of the depth."""
    warp, j = tl.arange(0, 4), tl.arange(0, 16 * BLOCKS)
    depth = begin + (j // 16 * 64 + j % 16)[None, :] + (warp * 16)[:, None]
    return w + rows[None, :, None] * K + depth[:, None, :]


@triton.jit
def read_whole(w, rows, K: tl.constexpr, BIG: tl.constexpr, REST: tl.constexpr):
    """The whole depth of some rows of a matrix, in two tiles of BIG and REST blocks of 64."""
    rest = tl.load(_tile(w, rows, K, 64 * BIG, REST), cache_modifier=".cg")
    return tl.load(_tile(w, rows, K, 0, BIG), cache_modifier=".cg"), rest


@triton.jit
def held(big, rest, target):
    """The same tiles, to be passed on from here: the compiler would wait for each as soon as it is asked for, and ask
    for the next one after that. `target` is a count, which the compiler does not know to be positive."""
    one = tl.where(target >= 0, 1.0, 0.0).to(big.dtype)
    return big * one, rest * one


@triton.jit
def product_of(w_big, w_rest, x_big, x_rest):
    """(columns, rows), in the order in which `single` adds."""
    sums = tl.dot(w_big, tl.permute(x_big, (0, 2, 1)), input_precision="ieee")
    return tl.sum(tl.dot(w_rest, tl.permute(x_rest, (0, 2, 1)), sums, input_precision="ieee"), 0)
