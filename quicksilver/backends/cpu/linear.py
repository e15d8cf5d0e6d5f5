"""torch modules with quantised weights: an int8 or 4-bit linear with the compiled matmul, and an int8 embedding."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from quicksilver.backends.cpu.jit import entry
from quicksilver.backends.cpu.matmul import Matrix, multiply
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN, STRIP_LEN
from quicksilver.backends.cpu.row_ops import Floats, QuantisedRows, empty_quantised, padded_len, quantise_row
from quicksilver.backends.cpu.threads import ThreadIndex, shared_pool
from quicksilver.backends.cpu.work_queue import (
    PhaseCounters,
    chunk_range,
    claim,
    complete,
    new_counters,
    num_chunks,
    wait_for,
)


class PackedLinear(nn.Module):
    """y = W x + bias with int8 activations and packed weights.

    Activations have one scale per 64 inputs. Weights are int8 with one scale per 64 inputs, or 4-bit with an fp16 scale
    and minimum per 32 inputs.
    """

    packed: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, packed: Tensor, scales: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if bias is None else bias.float())
        self.out_dim, self.in_dim = shape
        self.bits = 4 if scales.dtype is torch.float16 else 8

    @property
    def matrix(self) -> Matrix:
        num_groups, num_strips = padded_len(self.in_dim) // GROUP_LEN, self.packed.shape[0] * 16 // STRIP_LEN
        return Matrix(self.packed.data_ptr(), self.scales.data_ptr(), num_groups, num_strips, self.bits)

    def forward(self, x: Tensor) -> Tensor:
        matrix = np.array(self.matrix, np.int64)
        y = torch.empty(len(x), self.packed.shape[0] * 16)
        if len(x):
            pool, inputs = shared_pool(), empty_quantised(len(x), self.in_dim)
            counters = new_counters(2, pool.num_threads)
            source = pad(x.detach().float(), (0, padded_len(self.in_dim) - self.in_dim)).contiguous().numpy()
            rows, target = np.arange(len(x)), y.numpy()
            pool.run(lambda thread: _apply(source, matrix, inputs, rows, target, counters, thread))
        y = y[:, : self.out_dim].to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class Int8Embedding(nn.Module):
    """A table of int8 rows with one scale per row; lookups return `dtype`."""

    q: Tensor
    scale: Tensor

    def __init__(self, q: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.q[token_ids].to(self.dtype) * self.scale[token_ids, None].to(self.dtype)


@entry
def _apply(
    x: Floats,
    matrix: NDArray[np.int64],
    inputs: QuantisedRows,
    rows: NDArray[np.int64],
    y: Floats,
    counters: PhaseCounters,
    thread: ThreadIndex,
) -> None:
    """Phase 0 quantises the rows, phase 1 multiplies."""
    chunks = num_chunks(len(x), thread[1])
    chunk = claim(counters, 0, thread[0], chunks)
    while chunk < chunks:
        first, end = chunk_range(len(x), chunk, chunks)
        for row in range(first, end):
            quantise_row(x[row], inputs, row)
        complete(counters, 0)
        chunk = claim(counters, 0, thread[0], chunks)
    wait_for(counters, 0, chunks)
    chunks = num_chunks(matrix[3], thread[1])
    chunk = claim(counters, 1, thread[0], chunks)
    while chunk < chunks:
        multiply(inputs, matrix, rows, y, chunk_range(matrix[3], chunk, chunks), np.int64(0))
        complete(counters, 1)
        chunk = claim(counters, 1, thread[0], chunks)
    wait_for(counters, 1, chunks)
