"""Sampling: logits -> for every row a proposed token, its confidence and the entropy.

All settings are per row, so rows of many requests are sampled together, and no row depends on another. Callers pass
only the rows that they need, in tiles, so that the logits of a whole batch never exist at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.diffusion.noise import MAX_GUMBEL, gumbel_at, row_keys

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
    """One proposal per row. `confidence` and `entropy` are those of the processed logits at temperature 1."""

    token_ids: Tensor  # (rows,) int64
    confidence: Tensor  # (rows,) float32, probability of the proposed token
    entropy: Tensor  # (rows,) float32, nats
    is_finite: Tensor  # (rows,) bool; False where the logits were not usable
    # Only with `propose_with_samples`, where `token_ids` are the likeliest tokens:
    sampled_ids: Tensor | None = None  # (rows,) int64
    soft: Tensor | None = None  # (rows, dim) soft embeddings, on the device of the network

    def __getitem__(self, rows: slice) -> Proposal:
        count = self.token_ids.numel()
        if rows.indices(count) == (0, count, 1):
            return self  # the common case of one request; slicing four tensors is measurable in a CPU step
        sampled = None if self.sampled_ids is None else self.sampled_ids[rows]
        soft = None if self.soft is None else self.soft[rows]
        token_ids, confidence = self.token_ids[rows], self.confidence[rows]
        return Proposal(token_ids, confidence, self.entropy[rows], self.is_finite[rows], sampled, soft)

    def cpu(self) -> Proposal:
        """On the CPU, without the soft embeddings: these stay on their device."""
        sampled = None if self.sampled_ids is None else self.sampled_ids.cpu()
        token_ids, confidence = self.token_ids.cpu(), self.confidence.cpu()
        return Proposal(token_ids, confidence, self.entropy.cpu(), self.is_finite.cpu(), sampled, self.soft)


def propose(logits: Tensor, rows: SampleRows) -> Proposal:
    """`logits` (rows, vocab) float32, already processed and masked with -inf."""
    log_total = logits.logsumexp(-1)
    token_ids = sample_tokens(logits, rows, logits.argmax(-1))
    log_p = logits - log_total[:, None]
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(-1e4)).sum(-1)  # the clamp keeps 0 * -inf out of the sum
    confidence = p.gather(-1, token_ids[:, None])[:, 0]
    return Proposal(token_ids, confidence, entropy, log_total.isfinite())


def propose_with_samples(logits: Tensor, rows: SampleRows) -> Proposal:
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
