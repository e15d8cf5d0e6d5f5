"""Modules that compute with weights held in 8 or 4 bits. Each takes the stored tensors and picks the kernel once.

A kernel is chosen by asking the device what it has; where there is none the weight is expanded for the call, which is
right everywhere and slow. Build them on the device that serves: packed weights do not move. The stored format is
described in docs/reference/quantisation.md.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from quicksilver.model.formats.packing import dequantise_int4, unpack_nibbles

_GROUPED_KERNEL_GROUPS = (32, 64, 128, 256)


class Int8Linear(nn.Module):
    """Weight-only int8: q (out, in) int8 times scale (out,) fp32; activations keep their precision (bf16 on CPU)."""

    q: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, q: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and has_int8_kernel():
            y = torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.q, self.scale.bfloat16()).to(x.dtype)
        else:
            y = linear(x, self.q.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class DynamicInt8Linear(nn.Module):
    """int8 weights and 15-bit activations, each row of x scaled by its own largest value (CPU, fbgemm).

    An activation is two int8 digits, coarse and fine, which ride as two rows of one int8 matmul: with the coarse one
    alone SmolLM2 loses ten times as much. Sums are integers, so a row's bits cannot depend on its batch mates.
    """

    scale: Tensor
    bias: Tensor | None

    def __init__(self, q: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.out_dim, self.in_dim = q.shape
        self._packed = pack_int8(q, scale)
        # Without VNNI sums of two 8-bit products overflow 16 bits, so digits get 7.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63

    @property
    def packed_bytes(self) -> int:
        return self.out_dim * self.in_dim

    def forward(self, x: Tensor) -> Tensor:
        num_rows, levels = len(x), self._levels
        # A row of zeros turns to NaN here and to zero at the end; a row of NaN stays NaN.
        steps = levels / x.float().abs().amax(1, keepdim=True)
        scaled = x * steps
        digits = scaled.new_empty(2 * num_rows, self.in_dim)
        torch.round(scaled, out=digits[:num_rows])
        torch.sub(scaled, digits[:num_rows], out=digits[num_rows:]).mul_(2 * levels)
        y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(digits, 1.0, levels + 1, self._packed)
        y = torch.add(y[:num_rows], y[num_rows:], alpha=0.5 / levels).div_(steps).to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class Int4Linear(nn.Module):
    """Weight-only int4 in groups along the input: weight = (n - 8) * scale + zero, n in 0..15 (bf16 on CPU)."""

    q: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor | None

    def __init__(self, q: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.group_len = q.shape[1] * 2 // scale.shape[1]
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("bias", bias)
        self._has_kernel = q.device.type == "cpu" and has_int4_kernel() and self._fits_kernel(q)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack_nibbles(q), 1) if self._has_kernel else q
        self.register_buffer("q", packed)
        table = torch.stack((scale, zero), -1).transpose(0, 1).contiguous() if self._has_kernel else None
        self.register_buffer("_table", table)

    def _fits_kernel(self, q: Tensor) -> bool:
        return q.shape[0] % 64 == 0 and self.group_len in _GROUPED_KERNEL_GROUPS

    def forward(self, x: Tensor) -> Tensor:
        if self._has_kernel:
            mm = torch.ops.aten._weight_int4pack_mm_for_cpu
            y = mm(x.bfloat16(), self.q, self.group_len, self._table).to(x.dtype)
        else:
            y = linear(x, dequantise_int4(self.q, self.scale, self.zero).to(x.dtype))
        return y if self.bias is None else y + self.bias.to(x.dtype)


class Int8Embedding(nn.Module):
    """A table of int8 rows with a scale each; looks up in `dtype`."""

    q: Tensor
    scale: Tensor

    def __init__(self, q: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.q[token_ids].to(self.dtype) * self.scale[token_ids, None].to(self.dtype)


def pack_int8(q: Tensor, scale: Tensor) -> Any:
    """fbgemm's own blocked copy of an int8 weight. The only way in is a quantised tensor, which torch calls deprecated;
    where it is gone, `has_dynamic_kernel` says so."""
    zeros = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated")
        weight = torch._make_per_channel_quantized_tensor(q.cpu(), scale.double().cpu(), zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)


@cache
def has_dynamic_kernel() -> bool:
    """Whether this CPU multiplies int8 by int8 through fbgemm."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    q, scale = torch.ones(16, 16, dtype=torch.int8), torch.ones(16)
    return _runs(lambda: DynamicInt8Linear(q, scale, None)(torch.ones(1, 16)))


@cache
def has_int8_kernel() -> bool:
    q, scale = torch.ones(16, 32, dtype=torch.int8), torch.ones(16, dtype=torch.bfloat16)
    return _runs(lambda: torch.ops.aten._weight_int8pack_mm(torch.ones(1, 32, dtype=torch.bfloat16), q, scale))


@cache
def has_int4_kernel() -> bool:
    def try_it() -> None:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.ones(64, 32, dtype=torch.int32), 1)
        table = torch.ones(1, 64, 2, dtype=torch.bfloat16)
        torch.ops.aten._weight_int4pack_mm_for_cpu(torch.ones(1, 32, dtype=torch.bfloat16), packed, 32, table)

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and _runs(try_it)


def _runs(attempt: Any) -> bool:
    try:
        attempt()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True
