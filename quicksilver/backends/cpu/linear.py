"""torch modules over int8 weights: the packed linear of the compiled matmul, and the embedding table."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from quicksilver.backends.cpu.jit import entry
from quicksilver.backends.cpu.matmul import Matrix, multiply
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN, STRIP
from quicksilver.backends.cpu.row_ops import Floats, Rounded, empty_rounded, round_row, whole_groups
from quicksilver.backends.cpu.threads import Place, current_team
from quicksilver.backends.cpu.work_queue import Turns, finish, new_turns, num_pieces, share, take, wait


class PackedLinear(nn.Module):
    """y = W x + bias with int8 activations and packed weights.

    Activations have a scale for every 64 inputs. Weights are int8 with a scale for every 64 inputs, or 4-bit with an
    fp16 scale and minimum for every 32 inputs.
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
        num_groups, num_strips = whole_groups(self.in_dim) // GROUP_LEN, self.packed.shape[0] * 16 // STRIP
        return Matrix(self.packed.data_ptr(), self.scales.data_ptr(), num_groups, num_strips, self.bits)

    def forward(self, x: Tensor) -> Tensor:
        matrix = np.array(self.matrix, np.int64)
        y = torch.empty(len(x), self.packed.shape[0] * 16)
        if len(x):
            rounded, turns = empty_rounded(len(x), self.in_dim), new_turns(2)
            source = pad(x.detach().float(), (0, whole_groups(self.in_dim) - self.in_dim)).contiguous().numpy()
            rows, target = np.arange(len(x)), y.numpy()
            current_team().run(lambda place: _apply(source, matrix, rounded, rows, target, turns, place))
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
    rounded: Rounded,
    rows: NDArray[np.int64],
    y: Floats,
    turns: Turns,
    place: Place,
) -> None:
    pieces = num_pieces(len(x), place[1])
    piece = take(turns, 0)
    while piece < pieces:
        first, end = share(len(x), piece, pieces)
        for row in range(first, end):
            round_row(x[row], rounded, row)
        finish(turns, 0)
        piece = take(turns, 0)
    wait(turns, 0, pieces)
    pieces = num_pieces(matrix[3], place[1])
    piece = take(turns, 1)
    while piece < pieces:
        multiply(rounded, matrix, rows, y, share(matrix[3], piece, pieces), np.int64(0))
        finish(turns, 1)
        piece = take(turns, 1)
    wait(turns, 1, pieces)
