"""Counter-based random numbers: noise is a function of (seed, position, step, token) and of nothing else.

So a sampled answer is the same alone and in any batch, cached and uncached, before and after preemption; and `verify`
reproduces sampled autoregressive text token for token.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit integer: SplitMix64's increment
_MIX_1 = -4658895280553007687  # SplitMix64's first multiplier, signed
_MIX_2 = -7723592293110705685  # SplitMix64's second multiplier, signed
# Upper bound of the noise: the largest of the 2^23 uniform values, 1 - 2^-24, gives 16.64.
MAX_GUMBEL = 16.7


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own shift is arithmetic on signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: every input bit affects every output bit. Overflow wraps around."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def row_keys(seeds: Tensor, positions: Tensor, steps: Tensor) -> Tensor:
    """One 64-bit key per row."""
    return splitmix64(splitmix64(splitmix64(seeds + _GOLDEN) + positions * _GOLDEN) + steps * _GOLDEN)


def random_tokens(seed: int, positions: Tensor, step: int, vocab_size: int) -> Tensor:
    """One uniformly random token per position, independent of the noise of `gumbel` at the same position and step."""
    keys = row_keys(torch.full_like(positions, seed), positions, torch.full_like(positions, step))
    # `uniform` hashes key + (column + 1) * _GOLDEN, so the key itself is no column of it.
    return _shift_right(splitmix64(keys), 1) % vocab_size


def uniform(keys: Tensor, num_columns: int) -> Tensor:
    """(rows, num_columns) float32 in the open interval (0, 1)."""
    return _uniform_at(keys[:, None], torch.arange(num_columns, device=keys.device))


def _uniform_at(keys: Tensor, columns: Tensor) -> Tensor:
    bits = _shift_right(splitmix64(keys + (columns + 1) * _GOLDEN), 41)  # 23 bits: u + 0.5 stays exact in float32
    return (bits.to(torch.float32) + 0.5) * 2.0**-23


def gumbel(seeds: Tensor, positions: Tensor, steps: Tensor, vocab_size: int) -> Tensor:
    """Gumbel(0, 1) noise, (rows, vocab): argmax(logits / T + noise) is a sample of softmax(logits / T)."""
    return -torch.log(-torch.log(uniform(row_keys(seeds, positions, steps), vocab_size)))


def gumbel_at(keys: Tensor, token_ids: Tensor) -> Tensor:
    """The noise of single tokens, each under the key of its row."""
    return -torch.log(-torch.log(_uniform_at(keys, token_ids)))
