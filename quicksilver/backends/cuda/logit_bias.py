"""Sampling options of the fused head: which requests it can serve, which graph variant they need, and their logit bias.

Owns the tables that carry a bias to the device. The fused head gives the same results as
`diffusion/sample.py` for the same parameters. No kernels here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Sequence, Work
from quicksilver.core import DecodeParams, DecoderName
from quicksilver.diffusion.score import Scorer

# Biased and banned tokens per row. Chat answers ban the special tokens that must not appear: 15 for nano, 18 for
# coder-1.5b.
NUM_BIAS = 32
# Distinct sets of biases that a table remembers. Each set has a number, by which equal sets are recognised.
MAX_BIASES = 1024


class SamplingOptions(NamedTuple):
    """The features that a head graph is captured with. Requests without a feature do not pay for it."""

    is_sampled: bool = False
    is_biased: bool = False
    # Grammar bitmask applied. Implies `is_biased`, which keeps the number of captured variants at six instead of eight.
    is_masked: bool = False


# Captured at start: served chats have bans, and a capture between requests would delay all of them. Verify rounds that
# run as one graph (`rounds.py`) use these variants only.
UNMASKED_OPTIONS = tuple(
    SamplingOptions(is_sampled, is_biased) for is_sampled in (False, True) for is_biased in (False, True)
)
# Rounds in which some sequence has an adapter have these alone: they serve all requests that rounds can serve.
ADAPTER_OPTIONS = SamplingOptions(is_sampled=True, is_biased=True)
# For forwards that the host launches one by one. Rounds run ahead of the host, where the grammar's state is not known
# yet. Captured at start as well: each is a graph of three small launches.
MASKED_OPTIONS = tuple(SamplingOptions(is_sampled, is_biased=True, is_masked=True) for is_sampled in (False, True))


def options_of(works: Iterable[Work]) -> SamplingOptions:
    """The smallest set of options that serves all of `works`."""
    sequences = [work.sequence for work in works]
    params = [sequence.request.params for sequence in sequences]
    is_sampled = any(one.temperature > 0 for one in params)
    is_masked = any(sequence.constraint is not None for sequence in sequences)
    return SamplingOptions(is_sampled, is_masked or any(one.logit_bias or one.banned_ids for one in params), is_masked)


def fits_rounds(work: Work) -> bool:
    """Whether device-side rounds can serve `work`: the fused head can, and there is no grammar."""
    return work.sequence.constraint is None and fits_fused_head(work.sequence)


def fits_fused_head(sequence: Sequence) -> bool:
    """Whether the fused head can serve the request: greedy or temperature sampling, at most NUM_BIAS biased tokens,
    with or without a grammar, without penalties (the stutter penalty included) and logprobs."""
    if sequence.fits_fused_head is None:
        sequence.fits_fused_head = _fits_fused_head(sequence)
    return sequence.fits_fused_head


def _fits_fused_head(sequence: Sequence) -> bool:
    params = sequence.request.params
    has_stutter_penalty = params.decoder.name is DecoderName.EDIT and params.decoder.stutter_penalty != 0
    if isinstance(sequence.decoder, Scorer) or has_stutter_penalty:
        return False
    return len(bias_of(params)) <= NUM_BIAS and has_plain_sampling(params)


def has_plain_sampling(params: DecodeParams) -> bool:
    """Greedy or temperature sampling, without penalties and log-probabilities."""
    if params.logprobs is not None:
        return False
    if (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0, 0, 1):
        return False
    return params.temperature == 0 or (params.top_p >= 1 and params.top_k == 0 and params.min_p == 0)


def bias_of(params: DecodeParams) -> dict[int, float]:
    """Token -> value added to its logit. A ban is minus infinity and takes precedence over a bias."""
    return {**params.logit_bias, **dict.fromkeys(params.banned_ids, -math.inf)}


class BiasTable:
    """NUM_BIAS (token, value) pairs per row, token -1 for none, and the number of entries that each vocabulary tile of
    `tile_len` tokens has to read. Written on the host, at fixed addresses on the device."""

    def __init__(self, num_rows: int, num_tiles: int, tile_len: int, device: torch.device) -> None:
        is_pinned, self._tile_len = device.type == "cuda", tile_len
        host_ids = torch.full((NUM_BIAS, num_rows), -1, dtype=torch.int32, pin_memory=is_pinned)
        host_values = torch.zeros(NUM_BIAS, num_rows, pin_memory=is_pinned)
        host_tiles = torch.zeros(num_tiles, dtype=torch.int32, pin_memory=is_pinned)
        self._pairs = [(host, host.to(device, copy=True)) for host in (host_ids, host_values, host_tiles)]
        # numpy views are cheaper to write than tensors.
        self._ids, self._values, self._tiles = host_ids.numpy(), host_values.numpy(), host_tiles.numpy()
        # Set of biases -> its number; 0 is the empty set. Most requests have the same bans, so most rows already hold
        # what is written.
        self._numbers: dict[object, int] = {}
        self._number_of_row = [0] * num_rows
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

    def holds(self, row: int, params: DecodeParams) -> bool:
        """Whether `write` would not change the row."""
        return self._number_of_row[row] == self._number(params)

    def write(self, rows: slice, params: DecodeParams) -> None:
        """Write a request's bias for all of its proposing rows, canvas rows included. On the host; no copy may be in
        progress."""
        number, known = self._number(params), self._number_of_row[rows]
        if known.count(number) == len(known):
            return
        bias, self._number_of_row[rows], self._is_sent = bias_of(params), [number] * len(known), False
        self._ids[:, rows] = -1
        if bias:
            self._ids[: len(bias), rows] = [[token] for token in bias]
            self._values[: len(bias), rows] = [[value] for value in bias.values()]

    def _number(self, params: DecodeParams) -> int:
        if not params.logit_bias and not params.banned_ids:
            return 0
        if len(self._numbers) >= MAX_BIASES:
            self._numbers.clear()
            self._number_of_row = [-1] * len(self._number_of_row)
        key = (tuple(params.banned_ids), tuple(params.logit_bias.items()))
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def send(self) -> None:
        """Queue the copies to the device if anything changed."""
        if self._is_sent:
            return
        self._is_sent = True
        self._tiles[:] = 0
        entries, rows = np.nonzero(self._ids >= 0)
        np.maximum.at(self._tiles, self._ids[entries, rows] // self._tile_len, entries + 1)
        for host, device in self._pairs:
            device.copy_(host, non_blocking=True)
