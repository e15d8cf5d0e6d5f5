"""Packed documents whose answers are scored one by one, for preference training (`kto.py`, `pairs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.training.batches import make_batch
from quicksilver.training.loss import NO_ANSWER, answer_log_probs
from quicksilver.training.network import Network
from quicksilver.training.pack import Document, PackedRows, lay_out
from quicksilver.training.recipe import Kto, Pairs
from quicksilver.training.skill import SkilledRows


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Packed documents, and the number of the example at every answer token (-1 elsewhere)."""

    rows: PackedRows
    example: npt.NDArray[np.int32]
    num_examples: int


def example_rows(documents: Sequence[Document], row_len: int, num_rows: int, group_len: int = 1) -> ExampleRows:
    """As many of the first documents as fill the rows, in whole groups; each is in the first row with room."""
    held: list[list[int]] = [[] for _ in range(num_rows)]
    room = [row_len] * num_rows
    count = 0
    for start in range(0, len(documents), group_len):
        group = range(start, min(start + group_len, len(documents)))
        if not all(_place(number, len(documents[number].token_ids), held, room) for number in group):
            break
        count = group.stop
    held = [[number for number in numbers if number < count] for numbers in held]
    rows = lay_out([[documents[i] for i in numbers] for numbers in held], row_len, 0, 1 << 20)
    example = np.full(rows.token_ids.shape, NO_ANSWER, dtype=np.int32)
    for row, numbers in enumerate(held):
        at = 0
        for number in numbers:
            end = at + len(documents[number].token_ids)
            example[row, at:end] = np.where(documents[number].is_answer, number, NO_ANSWER)
            at = end
    return ExampleRows(rows, example, count)


def _place(number: int, length: int, held: list[list[int]], room: list[int]) -> bool:
    """Whether a row had room for the document."""
    row = next((i for i, space in enumerate(room) if space >= length), None)
    if row is not None:
        held[row].append(number)
        room[row] -= length
    return row is not None


class ScoredRows(SkilledRows):
    """Log-probabilities of whole answers under the skill that is trained, in fixed batches."""

    num_batches: int  # set by subclasses

    def __init__(self, network: Network, spec: Kto | Pairs, reserved_ids: Sequence[int]) -> None:
        super().__init__(network, spec.rank, spec.optim.seed, reserved_ids)
        self._seed, self._head_chunk = spec.optim.seed, spec.head_chunk

    def batch_index(self, step: int) -> int:
        """The batch of a step. Every pass over the batches has its own order."""
        pass_number, place = divmod(step, self.num_batches)
        return int(np.random.default_rng((self._seed, pass_number)).permutation(self.num_batches)[place])

    def log_probs(self, examples: ExampleRows) -> Tensor:
        """(num_examples,) log-probability of each answer."""
        device, rows = self.network.device, examples.rows
        arrays = (rows.token_ids.astype(np.int64), rows.is_start, rows.is_answer, rows.is_text)
        batch = make_batch(*(torch.from_numpy(array).to(device) for array in arrays))
        number = torch.from_numpy(examples.example).to(device).roll(-1, dims=1)
        number[:, -1] = NO_ANSWER
        target, hidden = batch.token_ids.roll(-1, dims=1).flatten(), self.hidden(batch).flatten(0, 1)
        ids = (target, number.flatten().long(), examples.num_examples)
        return answer_log_probs(hidden, self.head(), *ids, self.reserved_ids, self._head_chunk)
