"""Packed rows on the device, and the batches of each step.

The rows of a step depend only on the seed and the step number. A resumed run and every rank of a distributed run
therefore see the same rows as an uninterrupted single run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.training.pack import PackedRows


@dataclass(frozen=True, slots=True)
class Batch:
    """(rows, row_len) tensors. `doc_id` counts documents within a row; `positions` restart with each."""

    token_ids: Tensor
    doc_id: Tensor
    positions: Tensor
    is_answer: Tensor
    is_text: Tensor


def make_batch(token_ids: Tensor, is_start: Tensor, is_answer: Tensor, is_text: Tensor) -> Batch:
    """`is_start` marks the first token of every document and of the padding."""
    index = torch.arange(token_ids.shape[1], device=token_ids.device)
    start_of = torch.where(is_start, index, 0).cummax(1).values
    return Batch(token_ids, is_start.cumsum(1, dtype=torch.int32), index - start_of, is_answer, is_text)


class RowStore:
    """All packed rows, stored on the device in small integer types and widened per batch."""

    def __init__(self, rows: PackedRows, rows_per_batch: int, seed: int, device: torch.device) -> None:
        if rows.num_rows < rows_per_batch:
            raise InvalidRequest(
                f"{rows.num_rows} packed rows cannot fill a batch of {rows_per_batch}: lower rows_per_batch"
            )
        self._token_ids = torch.from_numpy(rows.token_ids.astype(np.int32)).to(device)
        flags = (rows.is_start, rows.is_answer, rows.is_text)
        self._is_start, self._is_answer, self._is_text = (torch.from_numpy(flag).to(device) for flag in flags)
        self.rows_per_batch, self._seed = rows_per_batch, seed
        self.num_rows, self.row_len, self.device = rows.num_rows, rows.row_len, device
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, number: int) -> Batch:
        """Return batch `number`, counted from the start of training. Each epoch has its own order."""
        per_pass = self.num_rows // self.rows_per_batch
        pass_number, place = divmod(number, per_pass)
        picked = self._pass_order(pass_number)[place * self.rows_per_batch : (place + 1) * self.rows_per_batch]
        flags = (flag[picked] for flag in (self._is_start, self._is_answer, self._is_text))
        return make_batch(self._token_ids[picked].long(), *flags)

    def _pass_order(self, pass_number: int) -> Tensor:
        if self._order[0] != pass_number:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + pass_number)
            self._order = (pass_number, torch.randperm(self.num_rows, generator=generator).to(self.device))
        return self._order[1]
