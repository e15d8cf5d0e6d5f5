"""Packed documents whose answers are scored one by one, for preference training (`kto.py`, `pairs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.training.batches import Batch
from quicksilver.training.loss import rows_with_loss, token_log_probs
from quicksilver.training.network import Network
from quicksilver.training.pack import Document, PackedRows, lay_out
from quicksilver.training.skill import SkilledRows

_NO_EXAMPLE = -1


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Packed documents, and the number of the example at every answer token (-1 elsewhere)."""

    rows: PackedRows
    example: npt.NDArray[np.int32]
    num_examples: int


def num_fitting(documents: Sequence[Document], row_len: int, num_rows: int) -> int:
    """How many of the first documents fill the rows, each in the first row with room."""
    room = [row_len] * num_rows
    for number, document in enumerate(documents):
        length = len(document.token_ids)
        row = next((i for i, space in enumerate(room) if space >= length), None)
        if length > row_len:
            raise InvalidRequest(f"a proposal of {length} tokens does not fit a row of {row_len}")
        if row is None:
            return number
        room[row] -= length
    return len(documents)


def example_rows(documents: Sequence[Document], row_len: int, num_rows: int) -> ExampleRows:
    held: list[list[int]] = [[] for _ in range(num_rows)]
    room = [row_len] * num_rows
    for number, document in enumerate(documents):
        row = next(i for i, space in enumerate(room) if space >= len(document.token_ids))
        held[row].append(number)
        room[row] -= len(document.token_ids)
    rows = lay_out([[documents[i] for i in numbers] for numbers in held], row_len, 0, 1 << 20)
    example = np.full(rows.token_ids.shape, _NO_EXAMPLE, dtype=np.int32)
    for row, numbers in enumerate(held):
        at = 0
        for number in numbers:
            end = at + len(documents[number].token_ids)
            example[row, at:end] = np.where(documents[number].is_answer, number, _NO_EXAMPLE)
            at = end
    return ExampleRows(rows, example, len(documents))


class ScoredRows(SkilledRows):
    """Log-probabilities of whole answers under the skill that is trained."""

    def __init__(self, network: Network, rank: int, seed: int, reserved_ids: Sequence[int], head_chunk: int) -> None:
        super().__init__(network, rank, seed, reserved_ids)
        self._head_chunk = head_chunk

    def log_probs(self, examples: ExampleRows) -> Tensor:
        """(num_examples,) log-probability of each answer."""
        batch, example = self._on_device(examples)
        number = example.roll(-1, dims=1)
        number[:, -1] = _NO_EXAMPLE
        flat, target = number.flatten(), batch.token_ids.roll(-1, dims=1).flatten()
        rows = rows_with_loss((flat >= 0).float(), self._head_chunk)
        hidden = self.hidden(batch).flatten(0, 1).index_select(0, rows)
        found = token_log_probs(hidden, self.head(), target[rows], self.reserved_ids, self._head_chunk)
        # Rows without an example are added to a place after the last one.
        place = torch.where(flat[rows] >= 0, flat[rows], examples.num_examples).long()
        return found.new_zeros(examples.num_examples + 1).index_add(0, place, found)[:-1]

    def _on_device(self, examples: ExampleRows) -> tuple[Batch, Tensor]:
        device, rows = self.network.device, examples.rows
        is_start = torch.from_numpy(rows.is_start).to(device)
        index = torch.arange(rows.row_len, device=device)
        start_of = torch.where(is_start, index, 0).cummax(1).values
        flags = (torch.from_numpy(flag).to(device) for flag in (rows.is_answer, rows.is_text))
        token_ids = torch.from_numpy(rows.token_ids.astype(np.int64)).to(device)
        batch = Batch(token_ids, is_start.cumsum(1, dtype=torch.int32), index - start_of, *flags)
        return batch, torch.from_numpy(examples.example).to(device)
