"""Logits to what a greedy row says of them: best token, its probability, entropy, and whether they were usable."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import entry, inner
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.threads import current_team
from quicksilver.backends.cpu.vector_ops import largest_of
from quicksilver.backends.cpu.work_queue import Turns, finish, new_turns, take, wait


class Said(NamedTuple):
    """One entry a row."""

    token_ids: NDArray[np.int64]
    confidence: Floats
    entropy: Floats
    totals: Floats
    """Sums of exp below the largest logit; not finite where the row is unusable."""


def read_greedy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows, vocab) float32, contiguous -> token ids, confidence, entropy, is_finite. The first of equals is taken."""
    rows = len(logits)
    said = Said(np.zeros(rows, np.int64), *(np.zeros(rows, np.float32) for _ in range(3)))
    turns, source = new_turns(1), logits.numpy()
    current_team().run(lambda _: _read_rows(source, said, turns))
    token_ids, confidence, entropy, totals = (torch.from_numpy(column) for column in said)
    return token_ids, confidence, entropy, totals.isfinite()


@entry
def _read_rows(logits: Floats, said: Said, turns: Turns) -> None:
    row = take(turns, 0)
    while row < len(logits):
        _read_row(logits[row], said, row)
        finish(turns, 0)
        row = take(turns, 0)
    wait(turns, 0, len(logits))


@inner
def _read_row(logits: Floats, said: Said, row: int) -> None:
    largest = largest_of(address_of(logits), len(logits))
    token_id = 0
    while token_id < len(logits) - 1 and logits[token_id] != largest:
        token_id += 1
    total, weighted = np.float32(0), np.float32(0)
    for i in range(len(logits)):
        below = logits[i] - largest
        below = np.float32(-87) if below < np.float32(-87) else below
        weight = exp32(below)
        total += weight
        weighted += weight * below
    said.token_ids[row] = token_id
    said.confidence[row] = np.float32(1) / total
    said.entropy[row] = np.log(total) - weighted / total
    said.totals[row] = total
