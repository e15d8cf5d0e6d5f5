"""Sampling: logits -> for every row a proposed token, its confidence and the entropy.

Noise is a function of (seed, position, step, token) and of nothing else. So a sampled answer is the same alone and in
any batch, cached and uncached, before and after preemption; and `verify` reproduces sampled autoregressive text token
for token.

`process_logits` changes the logits of one request before sampling, in place: logit bias, bans, penalties, grammar
bitmask, stutter penalty. Row i proposes the token after `generated + known[:i]`. Rows after the first mask have no
fully decided left context; they are treated as following all of `known`.

All settings are per row, so rows of many requests are sampled together, and no row depends on another. Callers pass
only the rows that they need, in tiles, so that the logits of a whole batch never exist at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.core import DecodeParams

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


# Added to the candidate bound of `_gumbel_argmax`: larger than its rounding error in float32.
_ROUNDING_MARGIN = 1e-3
# Top-p first looks at this many tokens; they nearly always reach top_p, and sorting all is slower than a small model.
_NUCLEUS_LEN = 256


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Sampling settings, one entry per row of logits."""

    temperature: Tensor  # (rows,) float32; 0 is greedy
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor  # (rows,) int64; 0 keeps all
    seeds: Tensor  # (rows,) int64
    positions: Tensor  # (rows,) int64, of the token being proposed
    steps: Tensor  # (rows,) int64


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposal per row. `confidence` and `entropy` are those of the processed logits at temperature 1. Arrays,
    because decoders compute with a few values at a time, for which arrays are several times faster than tensors."""

    token_ids: npt.NDArray[np.int64]  # (rows,)
    confidence: npt.NDArray[np.float32]  # (rows,), probability of the proposed token
    entropy: npt.NDArray[np.float32]  # (rows,), nats
    is_finite: npt.NDArray[np.bool_]  # (rows,); False where the logits were not usable
    # Only with `propose_with_samples`, where `token_ids` are the likeliest tokens:
    sampled_ids: npt.NDArray[np.int64] | None = None  # (rows,)
    soft: Tensor | None = None  # (rows, dim) soft embeddings, on the device of the network

    def __getitem__(self, rows: slice) -> Proposal:
        sampled = None if self.sampled_ids is None else self.sampled_ids[rows]
        soft = None if self.soft is None else self.soft[rows]
        token_ids, confidence = self.token_ids[rows], self.confidence[rows]
        return Proposal(token_ids, confidence, self.entropy[rows], self.is_finite[rows], sampled, soft)


@dataclass(frozen=True, slots=True)
class ProposalTensors:
    """The fields of a `Proposal` on the device of the logits."""

    token_ids: Tensor
    confidence: Tensor
    entropy: Tensor
    is_finite: Tensor
    sampled_ids: Tensor | None = None

    def to_host(self, soft: Tensor | None = None) -> Proposal:
        sampled = None if self.sampled_ids is None else self.sampled_ids.cpu().numpy()
        token_ids, confidence = self.token_ids.cpu().numpy(), self.confidence.cpu().numpy()
        return Proposal(token_ids, confidence, self.entropy.cpu().numpy(), self.is_finite.cpu().numpy(), sampled, soft)


def propose(logits: Tensor, rows: SampleRows) -> ProposalTensors:
    """`logits` (rows, vocab) float32, already processed and masked with -inf."""
    log_total = logits.logsumexp(-1)
    token_ids = sample_tokens(logits, rows, logits.argmax(-1))
    log_p = logits - log_total[:, None]
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(-1e4)).sum(-1)  # the clamp keeps 0 * -inf out of the sum
    confidence = p.gather(-1, token_ids[:, None])[:, 0]
    return ProposalTensors(token_ids, confidence, entropy, log_total.isfinite())


def propose_with_samples(logits: Tensor, rows: SampleRows) -> ProposalTensors:
    """The likeliest token of each row, and in addition a sampled one."""
    best = propose(logits, replace(rows, temperature=torch.zeros_like(rows.temperature)))
    return replace(best, sampled_ids=sample_tokens(logits, rows, best.token_ids))


def sample_tokens(logits: Tensor, rows: SampleRows, greedy_ids: Tensor) -> Tensor:
    """Sampled tokens of the rows with a temperature, `greedy_ids` (the argmax) of the others."""
    is_sampled = rows.temperature > 0
    if not bool(is_sampled.any()):
        return greedy_ids
    keys, temperature = row_keys(rows.seeds, rows.positions, rows.steps), rows.temperature.clamp_min(1e-5)
    if bool(((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)).any()):
        # Rows without a filter get the same numbers on this path as without it.
        logits, temperature = _filter(logits / temperature[:, None], rows), torch.ones_like(temperature)
    return torch.where(is_sampled, _gumbel_argmax(logits, temperature, greedy_ids, keys), greedy_ids)


def _gumbel_argmax(logits: Tensor, temperature: Tensor, greedy_ids: Tensor, keys: Tensor) -> Tensor:
    """argmax(logits / temperature + Gumbel noise); the lowest id among equals.

    Noise is computed only for candidates: tokens that the largest possible noise could lift above the greedy token.
    These are few of many thousands, and noise is the most expensive part of sampling.
    """
    best = logits.gather(-1, greedy_ids[:, None])[:, 0] / temperature
    bound = best + gumbel_at(keys, greedy_ids) - MAX_GUMBEL
    row, token = (logits > (bound * temperature - _ROUNDING_MARGIN)[:, None]).nonzero(as_tuple=True)
    score = logits[row, token] / temperature[row] + gumbel_at(keys[row], token)
    top = torch.full_like(best, -torch.inf).scatter_reduce(0, row, score, "amax")
    is_top = score == top[row]
    return greedy_ids.scatter_reduce(0, row[is_top], token[is_top], "amin", include_self=False)


def _filter(scaled: Tensor, rows: SampleRows) -> Tensor:
    return _keep_min_p(_keep_top_p(_keep_top_k(scaled, rows.top_k), rows.top_p), rows.min_p)


def _keep_top_k(scaled: Tensor, top_k: Tensor) -> Tensor:
    if not bool((top_k > 0).any()):
        return scaled
    widest = int(top_k.max())
    best = scaled.topk(min(widest, scaled.shape[-1]), dim=-1).values
    kth = best.gather(-1, (top_k.clamp(1, best.shape[-1]) - 1)[:, None])
    return scaled.masked_fill((scaled < kth) & (top_k > 0)[:, None], -torch.inf)


def _keep_top_p(scaled: Tensor, top_p: Tensor) -> Tensor:
    """The nucleus among the best `_NUCLEUS_LEN` tokens; rows whose nucleus is larger are sorted completely."""
    if not bool((top_p < 1).any()):
        return scaled
    kept, is_complete = _nucleus(scaled, top_p, min(_NUCLEUS_LEN, scaled.shape[-1]))
    is_open = ~is_complete & (top_p < 1)
    if bool(is_open.any()):
        kept[is_open], _ = _nucleus(scaled[is_open], top_p[is_open], scaled.shape[-1])
    return torch.where((top_p < 1)[:, None], kept, scaled)


def _nucleus(scaled: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Logits with all but the nucleus at -inf, and whether the best `width` tokens reach top_p.

    The nucleus is the shortest run of the best tokens whose probabilities reach top_p; it has at least one token.
    """
    ordered, index = scaled.topk(width, dim=-1)
    p = (ordered - scaled.logsumexp(-1, keepdim=True)).exp()
    reached = p.cumsum(-1)
    is_dropped = reached - p >= top_p[:, None]
    is_dropped[:, 0] = False
    kept = torch.full_like(scaled, -torch.inf).scatter(-1, index, ordered.masked_fill(is_dropped, -torch.inf))
    return kept, reached[:, -1] >= top_p


def _keep_min_p(scaled: Tensor, min_p: Tensor) -> Tensor:
    if not bool((min_p > 0).any()):
        return scaled
    bound = scaled.amax(-1) + min_p.clamp_min(1e-30).log()
    return scaled.masked_fill((scaled < bound[:, None]) & (min_p > 0)[:, None], -torch.inf)


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
    counts = Counter(context.generated)
    seen = {*context.prompt, *counts}
    for i, row in enumerate(logits):
        for token_id in context.known[max(i - 1, 0) : i]:
            counts[token_id] += 1
            seen.add(token_id)
        _penalise_row(row, counts, seen, params)


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


def sample_rows(
    params: Sequence[DecodeParams], first_positions: Sequence[int], num_rows: Sequence[int], steps: Sequence[int]
) -> SampleRows:
    """The sampling settings of requests, repeated for their rows. Row i of a request proposes the token at i positions
    after its first one."""

    def column(values: list[float] | Sequence[int], dtype: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype).repeat(num_rows))

    ends = np.cumsum(num_rows)
    starts = np.array(first_positions, dtype=np.int64) - (ends - num_rows)
    return SampleRows(
        column([one.temperature for one in params], np.float32),
        column([one.top_p for one in params], np.float32),
        column([one.min_p for one in params], np.float32),
        column([one.top_k for one in params], np.int64),
        column([one.seed for one in params], np.int64),
        torch.from_numpy(np.arange(ends[-1]) + starts.repeat(num_rows)),
        column(steps, np.int64),
    )
