"""What requests wish of the head: whether the fused one can answer them, in which kind, and with which bias.

Owns the tables in which a bias reaches the device. What the fused head says equals what
`diffusion/logit_processing.py` and the sampler make of the same params. No kernels here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.core import DecodeParams, DecoderName
from quicksilver.diffusion.score import Scorer

NUM_BIAS = 32
"""Biased and banned tokens a row may have. Chat answers ban the special tokens that have no place in them: nano's 15,
coder-1.5b's 18."""


MAX_KINDS = 1024
"""Different biases that a table remembers."""


class HeadKind(NamedTuple):
    """Each kind has kernels and graphs of its own, so that requests without wishes pay for none."""

    is_drawn: bool = False
    is_biased: bool = False
    is_masked: bool = False
    """By grammars. Then it is biased too: served chats have bans with or without a grammar, and so there are two kinds
    more, not four."""


HEAD_KINDS = tuple(HeadKind(is_drawn, is_biased) for is_drawn in (False, True) for is_biased in (False, True))
"""All are captured at start: served chats have bans, and a capture between requests would hold up everybody. Rounds
have these kinds and no others."""
MASKED_KINDS = tuple(HeadKind(is_drawn, is_biased=True, is_masked=True) for is_drawn in (False, True))
"""Only of heads that the host drives: what runs ahead of it cannot know what a grammar will allow. Captured at start as
well, since these are graphs of three small launches."""


def kind_of(works: Iterable[Work]) -> HeadKind:
    """The least kind of head that answers all of `works`."""
    sequences = [work.sequence for work in works]
    params = [sequence.request.params for sequence in sequences]
    is_drawn = any(one.temperature > 0 for one in params)
    is_masked = any(sequence.constraint is not None for sequence in sequences)
    return HeadKind(is_drawn, is_masked or any(one.logit_bias or one.banned_ids for one in params), is_masked)


def is_plain(work: Work) -> bool:
    """Whether rounds can answer, ahead of the host: what the fused head can, without a grammar."""
    return work.sequence.constraint is None and is_fused(work)


def is_fused(work: Work) -> bool:
    """Whether the fused head can answer: greedy or tempered rows with little bias, with or without a grammar, without
    penalties or logprobs."""
    sequence = work.sequence
    params = sequence.request.params
    if isinstance(sequence.decoder, Scorer) or params.logprobs is not None:
        return False
    if len(bias_of(params)) > NUM_BIAS or params.decoder.name is DecoderName.EDIT:
        return False
    if (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0, 0, 1):
        return False
    return params.temperature == 0 or (params.top_p >= 1 and params.top_k == 0 and params.min_p == 0)


def bias_of(params: DecodeParams) -> dict[int, float]:
    """Token -> what is added to its logit; a ban, whatever else is said of the token, is minus infinity."""
    return {**params.logit_bias, **dict.fromkeys(params.banned_ids, -math.inf)}


class BiasTable:
    """NUM_BIAS (token, value) pairs a row, token -1 for none, and how many of them a tile of `tile_len` tokens has to
    look at: written on the host, fixed on the device."""

    def __init__(self, num_rows: int, num_tiles: int, tile_len: int, device: torch.device) -> None:
        is_pinned, self._tile_len = device.type == "cuda", tile_len
        host_ids = torch.full((NUM_BIAS, num_rows), -1, dtype=torch.int32, pin_memory=is_pinned)
        host_values = torch.zeros(NUM_BIAS, num_rows, pin_memory=is_pinned)
        host_tiles = torch.zeros(num_tiles, dtype=torch.int32, pin_memory=is_pinned)
        self._pairs = [(host, host.to(device, copy=True)) for host in (host_ids, host_values, host_tiles)]
        # Cheaper to write than tensors.
        self._rows_of_ids, self._rows_of_values = host_ids.numpy(), host_values.numpy()
        self._tiles = host_tiles.numpy()
        self._kinds: dict[object, int] = {}
        self._kind_of_row = [0] * num_rows
        """Which bias a row has, by its number in `_kinds`; 0 is none. Most requests have the same bans, so most rows
        have already what is to be written."""
        self._is_sent = True

    @property
    def ids(self) -> Tensor:
        """(NUM_BIAS, rows) int32, on the device."""
        return self._pairs[0][1]

    @property
    def values(self) -> Tensor:
        """(NUM_BIAS, rows) float32, on the device."""
        return self._pairs[1][1]

    @property
    def tiles(self) -> Tensor:
        """(tiles,) int32, on the device."""
        return self._pairs[2][1]

    def write(self, rows: slice, params: DecodeParams) -> None:
        """All of a request's proposals, canvas rows too, have its bias. On the host; no copy may be under way."""
        kind, known = self._kind(params), self._kind_of_row[rows]
        if known.count(kind) == len(known):
            return
        bias, self._kind_of_row[rows], self._is_sent = bias_of(params), [kind] * len(known), False
        self._rows_of_ids[:, rows] = -1
        if bias:
            self._rows_of_ids[: len(bias), rows] = [[token] for token in bias]
            self._rows_of_values[: len(bias), rows] = [[value] for value in bias.values()]

    def _kind(self, params: DecodeParams) -> int:
        if not params.logit_bias and not params.banned_ids:
            return 0
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
            self._kind_of_row = [-1] * len(self._kind_of_row)
        key = (tuple(params.banned_ids), tuple(params.logit_bias.items()))
        return self._kinds.setdefault(key, len(self._kinds) + 1)

    def send(self) -> None:
        if self._is_sent:
            return
        self._is_sent = True
        self._tiles[:] = 0
        entries, rows = np.nonzero(self._rows_of_ids >= 0)
        np.maximum.at(self._tiles, self._rows_of_ids[entries, rows] // self._tile_len, entries + 1)
        for host, device in self._pairs:
            device.copy_(host, non_blocking=True)
