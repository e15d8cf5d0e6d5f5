"""What a request does to its own logits before sampling: bias, bans, penalties, grammar bitmask, stutter guard.

Works in place on the rows of one request. Row i proposes the token after `generated + known[:i]`; rows behind a mask
have no certain left context of their own and count as following all of `known`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import DecodeParams


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One request's settings and left context for one forward."""

    params: DecodeParams
    prompt: Sequence[int]
    generated: Sequence[int]
    known: Sequence[int] = ()
    bitmask: Tensor | None = None
    """(masked rows, words) int32: allowed tokens of the leading rows."""
    avoid: Sequence[int] = ()
    """For every row the token the stutter guard penalises, -1 for none; empty where the guard is off."""


def adjust(logits: Tensor, what: Adjustment) -> None:
    """In place on `logits` (rows, vocab)."""
    _bias(logits, what.params)
    _penalise(logits, what)
    _avoid(logits, what)
    if what.bitmask is not None:
        rows = min(len(what.bitmask), len(logits))
        logits[:rows].masked_fill_(~allowed(what.bitmask[:rows], logits.shape[-1]), -torch.inf)


def allowed(bitmask: Tensor, vocab_size: int) -> Tensor:
    """(rows, words) int32 -> (rows, vocab) bool."""
    bits = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    return ((bitmask[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]


def _bias(logits: Tensor, params: DecodeParams) -> None:
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[:, ids] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    if params.banned_ids:
        logits[:, list(params.banned_ids)] = -torch.inf


def _penalise(logits: Tensor, what: Adjustment) -> None:
    params = what.params
    if params.presence_penalty == params.frequency_penalty == 0 and params.repetition_penalty == 1:
        return
    for i, row in enumerate(logits):
        counts = Counter([*what.generated, *what.known[:i]])
        _penalise_row(row, counts, set(counts) | set(what.prompt), params)


def _penalise_row(row: Tensor, counts: Counter[int], seen: set[int], params: DecodeParams) -> None:
    if params.repetition_penalty != 1 and seen:
        ids = torch.tensor(sorted(seen), device=row.device)
        z = row[ids]
        row[ids] = torch.where(z > 0, z / params.repetition_penalty, z * params.repetition_penalty)
    if counts:
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
        row[ids] -= params.presence_penalty + params.frequency_penalty * times


def _avoid(logits: Tensor, what: Adjustment) -> None:
    penalty = what.params.decoder.stutter_penalty
    for row, token_id in zip(logits, what.avoid, strict=False):
        if token_id >= 0:
            row[token_id] -= penalty
