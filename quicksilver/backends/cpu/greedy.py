"""Greedy proposals from logits: the best token, its probability, the entropy, and whether the row was usable."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import entry, inner
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.threads import ThreadIndex, shared_pool
from quicksilver.backends.cpu.vector_ops import max_of
from quicksilver.backends.cpu.work_queue import PhaseCounters, claim, complete, new_counters, wait_for


class GreedyArrays(NamedTuple):
    """Results, one entry per row."""

    token_ids: NDArray[np.int64]
    confidence: Floats
    entropy: Floats
    totals: Floats  # sum of exp(logit - max); not finite if the row is unusable


def propose_greedy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows, vocab) float32, contiguous -> token ids, confidence, entropy, is_finite. The lowest id among equals."""
    rows = len(logits)
    results = GreedyArrays(np.zeros(rows, np.int64), *(np.zeros(rows, np.float32) for _ in range(3)))
    pool, source = shared_pool(), logits.numpy()
    counters = new_counters(1, pool.num_threads)
    pool.run(lambda thread: _read_rows(source, results, counters, thread))
    token_ids, confidence, entropy, totals = (torch.from_numpy(column) for column in results)
    return token_ids, confidence, entropy, totals.isfinite()


@entry
def _read_rows(logits: Floats, results: GreedyArrays, counters: PhaseCounters, thread: ThreadIndex) -> None:
    row = claim(counters, 0, thread[0], len(logits))
    while row < len(logits):
        _read_row(logits[row], results, row)
        complete(counters, 0)
        row = claim(counters, 0, thread[0], len(logits))
    wait_for(counters, 0, len(logits))


@inner
def _read_row(logits: Floats, results: GreedyArrays, row: int) -> None:
    largest = max_of(address_of(logits), len(logits))
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
    results.token_ids[row] = token_id
    results.confidence[row] = np.float32(1) / total
    results.entropy[row] = np.log(total) - weighted / total
    results.totals[row] = total
