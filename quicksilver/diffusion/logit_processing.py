"""Changes of a request's logits before sampling: logit bias, bans, penalties, grammar bitmask, stutter penalty.

All functions work in place on the rows of one request. Row i proposes the token after `generated + known[:i]`. Rows
after the first mask have no fully decided left context; they are treated as following all of `known`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import DecodeParams


@dataclass(frozen=True, slots=True)
class LogitContext:
    """The settings of one request and the left context of its rows in one forward."""

    params: DecodeParams
    prompt: Sequence[int]
    generated: Sequence[int]
    known: Sequence[int] = ()  # the leading decided tokens of the tail
    bitmask: Tensor | None = None  # (leading rows, words) int32: tokens that a grammar allows
    temperature: float = 1.0  # divides the logits, before the grammar applies (`canvas`)
    left_neighbours: Sequence[int] = ()  # per row, the token of the stutter penalty; -1 or a missing entry for none


def process_logits(logits: Tensor, context: LogitContext) -> None:
    """In place on `logits` (rows, vocab)."""
    _apply_bias(logits, context.params)
    _apply_penalties(logits, context)
    _apply_stutter_penalty(logits, context)
    if context.temperature != 1:
        logits /= context.temperature
    if context.bitmask is not None:
        rows = min(len(context.bitmask), len(logits))
        logits[:rows].masked_fill_(~unpack_bitmask(context.bitmask[:rows], logits.shape[-1]), -torch.inf)


def unpack_bitmask(bitmask: Tensor, vocab_size: int) -> Tensor:
    """(rows, words) int32 -> (rows, vocab) bool."""
    bits = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    return ((bitmask[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]


def _apply_bias(logits: Tensor, params: DecodeParams) -> None:
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[:, ids] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    if params.banned_ids:
        logits[:, list(params.banned_ids)] = -torch.inf


def _apply_penalties(logits: Tensor, context: LogitContext) -> None:
    params = context.params
    if params.presence_penalty == params.frequency_penalty == 0 and params.repetition_penalty == 1:
        return
    for i, row in enumerate(logits):
        counts = Counter([*context.generated, *context.known[:i]])
        _penalise_row(row, counts, set(counts) | set(context.prompt), params)


def _penalise_row(row: Tensor, counts: Counter[int], seen: set[int], params: DecodeParams) -> None:
    if params.repetition_penalty != 1 and seen:
        ids = torch.tensor(sorted(seen), device=row.device)
        z = row[ids]
        row[ids] = torch.where(z > 0, z / params.repetition_penalty, z * params.repetition_penalty)
    if counts:
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
        row[ids] -= params.presence_penalty + params.frequency_penalty * times


def _apply_stutter_penalty(logits: Tensor, context: LogitContext) -> None:
    penalty = context.params.decoder.stutter_penalty
    for row, token_id in zip(logits, context.left_neighbours, strict=False):
        if token_id >= 0:
            row[token_id] -= penalty
