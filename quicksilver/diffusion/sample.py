"""Logits -> proposals: for every row the token it proposes, and how sure it is.

All settings are per row, so rows of many requests are sampled together; nothing here depends on batch mates. Callers
pass only undecided rows, in tiles, so that the batch's logits never exist at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.diffusion.noise import MOST_GUMBEL, gumbel_at, row_keys

_SLACK = 1e-3
"""More than rounding moves a floor by."""
_NUCLEUS = 256
"""Tokens among which top-p is looked for first."""


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
    """What each row proposes. `confidence` and `entropy` are of the adjusted distribution at temperature 1."""

    token_ids: Tensor  # (rows,) int64
    confidence: Tensor  # (rows,) float32, probability of the proposed token
    entropy: Tensor  # (rows,) float32, nats
    is_finite: Tensor  # (rows,) bool; False where the logits were unusable

    def __getitem__(self, rows: slice) -> Proposal:
        count = self.token_ids.numel()
        if rows.indices(count) == (0, count, 1):
            return self  # often asked for, and four slices are a part of a step's time
        return Proposal(self.token_ids[rows], self.confidence[rows], self.entropy[rows], self.is_finite[rows])

    def cpu(self) -> Proposal:
        return Proposal(self.token_ids.cpu(), self.confidence.cpu(), self.entropy.cpu(), self.is_finite.cpu())


def propose(logits: Tensor, rows: SampleRows) -> Proposal:
    """`logits` (rows, vocab) float32, already biased, penalised and masked with -inf."""
    log_total = logits.logsumexp(-1)
    token_ids = draw(logits, rows, logits.argmax(-1))
    log_p = logits - log_total[:, None]
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(-1e4)).sum(-1)  # the clamp keeps 0 * -inf out of the sum
    confidence = p.gather(-1, token_ids[:, None])[:, 0]
    return Proposal(token_ids, confidence, entropy, log_total.isfinite())


def draw(logits: Tensor, rows: SampleRows, likeliest: Tensor) -> Tensor:
    """Tokens of the rows that are sampled; of the others the `likeliest`."""
    is_sampled = rows.temperature > 0
    if not bool(is_sampled.any()):
        return likeliest
    keys, heat = row_keys(rows.seeds, rows.positions, rows.steps), rows.temperature.clamp_min(1e-5)
    if bool(((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)).any()):
        # The rows that ask for no cut come out of this with the numbers they have without it.
        logits, heat = _cut(logits / heat[:, None], rows), torch.ones_like(heat)
    return torch.where(is_sampled, _noisy_argmax(logits, heat, likeliest, keys), likeliest)


def _noisy_argmax(logits: Tensor, heat: Tensor, likeliest: Tensor, keys: Tensor) -> Tensor:
    """argmax(logits / heat + noise), the first of equals. Noise is made only for tokens that it could carry past the
    likeliest one, a few of many thousands: it costs more than all else that is done with a row."""
    best = logits.gather(-1, likeliest[:, None])[:, 0] / heat
    floor = best + gumbel_at(keys, likeliest) - MOST_GUMBEL
    row, token = (logits > (floor * heat - _SLACK)[:, None]).nonzero(as_tuple=True)
    score = logits[row, token] / heat[row] + gumbel_at(keys[row], token)
    top = torch.full_like(best, -torch.inf).scatter_reduce(0, row, score, "amax")
    is_top = score == top[row]
    return likeliest.scatter_reduce(0, row[is_top], token[is_top], "amin", include_self=False)


def _cut(scaled: Tensor, rows: SampleRows) -> Tensor:
    return _keep_min_p(_keep_top_p(_keep_top_k(scaled, rows.top_k), rows.top_p), rows.min_p)


def _keep_top_k(scaled: Tensor, top_k: Tensor) -> Tensor:
    if not bool((top_k > 0).any()):
        return scaled
    widest = int(top_k.max())
    best = scaled.topk(min(widest, scaled.shape[-1]), dim=-1).values
    kth = best.gather(-1, (top_k.clamp(1, best.shape[-1]) - 1)[:, None])
    return scaled.masked_fill((scaled < kth) & (top_k > 0)[:, None], -torch.inf)


def _keep_top_p(scaled: Tensor, top_p: Tensor) -> Tensor:
    """Sorting a vocabulary takes longer than a small model's forward, so first the best few are tried, which nearly
    always hold all that is to be kept."""
    if not bool((top_p < 1).any()):
        return scaled
    kept, is_whole = _nucleus(scaled, top_p, min(_NUCLEUS, scaled.shape[-1]))
    is_open = ~is_whole & (top_p < 1)
    if bool(is_open.any()):
        kept[is_open], _ = _nucleus(scaled[is_open], top_p[is_open], scaled.shape[-1])
    return torch.where((top_p < 1)[:, None], kept, scaled)


def _nucleus(scaled: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Of the `width` best tokens those before which top_p is not reached, and always the first; the rest -inf. And
    whether top_p is reached among them."""
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
    floor = scaled.amax(-1) + min_p.clamp_min(1e-30).log()
    return scaled.masked_fill((scaled < floor[:, None]) & (min_p > 0)[:, None], -torch.inf)
