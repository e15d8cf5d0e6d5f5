"""Row-wise kernels for any number of rows: embedding, RMS norm, SwiGLU, fp8 quantisation. One program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch

# Factor of the fp16 inputs of quantised linears. Their weights convert to fp16 exactly, and a 64th of an activation is
# within the range of fp16, with more mantissa bits than bf16.
INPUT_SCALE = 1 / 64


@triton.jit
def to_input_format(wide, dtype: tl.constexpr, INPUT_SCALE: tl.constexpr):
    """Convert an activation to the input format of the next linear; a scaled one saturates at the fp16 range."""
    if INPUT_SCALE != 1.0:
        wide = tl.minimum(tl.maximum(wide * INPUT_SCALE, -65504.0), 65504.0)
    return wide.to(dtype)


@triton.jit
def _embed_kernel(
    tokens, masks, token_ids, mask_index, out, dim, num_masks,
    BLOCK: tl.constexpr, MASKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    token = tl.load(token_ids + row).to(tl.int64)
    source = tokens + token * dim
    if MASKS:
        index = tl.load(mask_index + row)
        if index >= 0:
            # A canvas longer than the mask table uses its last embedding.
            source = masks + tl.minimum(index, num_masks - 1).to(tl.int64) * dim
    x = tl.load(source + d, mask=d < dim)
    tl.store(out + row.to(tl.int64) * dim + d, x, mask=d < dim)


@triton.jit
def _norm_kernel(
    x, index, gain, out, steps, eps, dim,
    BLOCK: tl.constexpr, GATHER: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    source = tl.load(index + row).to(tl.int64) if GATHER else row
    wide = tl.load(x + source * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(wide * wide, 0) / dim + eps)
    y = wide * inv_rms * tl.load(gain + d, mask=d < dim, other=0.0).to(tl.float32)
    if FP8:
        step = fp8_step(tl.max(tl.abs(y), 0))
        tl.store(steps + row, step)
        y = y / step
    tl.store(out + row * dim + d, y.to(out.dtype.element_ty), mask=d < dim)


@triton.jit
def _scale_kernel(
    x, gain, y, steps, squares, num_rows, num_tiles, tile_stride, row_stride, dim,
    BLOCK: tl.constexpr, TILES: tl.constexpr, INPUT_SCALE: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0)
    d, tile = tl.arange(0, BLOCK), tl.arange(0, TILES)
    wide = tl.load(x + row.to(tl.int64) * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    gains = tl.load(gain + d, mask=d < dim, other=0.0).to(tl.float32)
    scaled = wide * gains
    if FP8:
        GROUPS: tl.constexpr = BLOCK // 128
        group = tl.arange(0, GROUPS)
        step = fp8_step(tl.max(tl.abs(tl.reshape(scaled, (GROUPS, 128))), 1))
        tl.store(steps + group * num_rows + row, step, mask=group * 128 < dim)
        scaled = tl.reshape(tl.reshape(scaled, (GROUPS, 128)) / step[:, None], (BLOCK,))
    tl.store(y + row.to(tl.int64) * dim + d, to_input_format(scaled, y.dtype.element_ty, INPUT_SCALE), mask=d < dim)
    total = tl.sum(wide * wide, 0)
    at = squares + tile * tile_stride + row * row_stride
    tl.store(at, tl.where(tile == 0, total, 0.0), mask=tile < num_tiles)


@triton.jit
def _swiglu_kernel(gate_up, out, ffn, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * ffn + d, mask=d < ffn, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * ffn + ffn + d, mask=d < ffn, other=0.0).to(tl.float32)
    tl.store(out + row * ffn + d, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=d < ffn)


def embed(tokens: Tensor, masks: Tensor | None, token_ids: Tensor, mask_index: Tensor, out: Tensor) -> Tensor:
    """Rows of the token table, or of `masks` (same dtype) where mask_index >= 0."""
    dim = tokens.shape[1]
    _embed_kernel[(len(token_ids),)](
        tokens, masks if masks is not None else tokens, token_ids, mask_index, out, dim,
        len(masks) if masks is not None else 0,
        BLOCK=triton.next_power_of_2(dim), MASKS=masks is not None, num_warps=4, **pdl_options(),
    )  # fmt: skip
    return out


def norm_rows(
    x: Tensor, gain: Tensor, eps: float, out: Tensor, index: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    """RMS norm of the rows of x, or of the rows in `index` (int32). If `out` is fp8, `steps` receives an fp32 scale per
    row."""
    dim = x.shape[1]
    _norm_kernel[(out.shape[0],)](
        x, index if index is not None else x, gain, out, steps if steps is not None else x, eps, dim,
        BLOCK=triton.next_power_of_2(dim), GATHER=index is not None, FP8=steps is not None,
        num_warps=4, **pdl_options(),
    )  # fmt: skip
    return out


def scale_rows(
    x: Tensor, gain: Tensor, y: Tensor, squares: Tensor, input_scale: float = 1.0, steps: Tensor | None = None
) -> None:
    """y = x * gain * input_scale, and the sum of squares of each row in the first tile of `squares` (tiles, rows), zero
    in the others. With `steps` (dim / 128, rows) y is fp8."""
    rows, dim = x.shape
    _scale_kernel[(rows,)](
        x, gain, y, steps if steps is not None else x, squares, rows, squares.shape[0], *squares.stride(), dim,
        BLOCK=triton.next_power_of_2(dim), TILES=triton.next_power_of_2(squares.shape[0]),
        INPUT_SCALE=input_scale, FP8=steps is not None, num_warps=4, **pdl_options(),
    )  # fmt: skip


def swiglu_rows(gate_up: Tensor, out: Tensor) -> Tensor:
    ffn = out.shape[1]
    block = min(triton.next_power_of_2(ffn), 2048)
    _swiglu_kernel[(out.shape[0], triton.cdiv(ffn, block))](
        gate_up, out, ffn, BLOCK=block, num_warps=4, **pdl_options()
    )
    return out


@triton.jit
def _quantise_kernel(x, out, scale, K, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    wide = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    step = fp8_step(tl.max(tl.abs(wide), 0))
    tl.store(scale + row, step)
    tl.store(out + row * K + k, (wide / step).to(out.dtype.element_ty), mask=k < K)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (rows, k) -> fp8 rows and fp32 scales (rows, 1) with row = scale * fp8."""
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    _quantise_kernel[(x.shape[0],)](
        x, out, scale, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4, **pdl_options()
    )
    return out, scale
