"""Preference training by KTO: accepted answers become likelier than under the reference, rejected ones less likely.

The reference is the skill adapter that training starts from; its log-probabilities are computed once. Batches are
fixed, because the estimate of the divergence pairs each prompt with the next proposal of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.training.example_rows import ExampleRows, ScoredRows, example_rows
from quicksilver.training.loop import StepReport
from quicksilver.training.network import Network
from quicksilver.training.proposals import Proposal
from quicksilver.training.recipe import Kto

# Bounds of the total weight of accepted over that of rejected proposals.
LEAST_RATIO, MOST_RATIO = 1.0, 4 / 3


@dataclass(frozen=True, slots=True)
class Weights:
    """Loss weights of an accepted and of a rejected proposal."""

    accepted: float
    rejected: float


def balanced_weights(num_accepted: float, num_rejected: float) -> Weights:
    """Weights that bring the total weight of accepted over rejected proposals within its bounds; the least is 1."""
    if not num_accepted or not num_rejected:
        raise InvalidRequest("KTO needs accepted and rejected proposals")
    ratio = num_accepted / num_rejected
    if ratio < LEAST_RATIO:
        return Weights(LEAST_RATIO / ratio, 1.0)
    return Weights(1.0, max(1.0, ratio / MOST_RATIO))


def kto_loss(
    log_ratio: Tensor,
    is_accepted: Tensor,
    divergence: Tensor,
    beta: float,
    weights: Weights,
    row_weight: Tensor | float = 1.0,
) -> Tensor:
    """Weighted mean over proposals. log_ratio: log-probability of each under the policy less that under the reference.

    Accepted: 1 - sigmoid(beta (log_ratio - divergence)); rejected: 1 - sigmoid(beta (divergence - log_ratio)).
    """
    sign = torch.where(is_accepted, 1.0, -1.0)
    losses = 1 - torch.sigmoid(beta * sign * (log_ratio - divergence))
    return (losses * torch.where(is_accepted, weights.accepted, weights.rejected) * row_weight).mean()


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """Proposals of one step, in the order of `numbers`, and prompts with another proposal for the divergence."""

    proposals: ExampleRows
    numbers: npt.NDArray[np.int64]
    mismatched: ExampleRows


def fixed_batches(proposals: Sequence[Proposal], row_len: int, num_rows: int, num_kl_rows: int) -> Iterator[FixedBatch]:
    """Batches of whole documents that fill at most `num_rows` rows. What is left at the end is dropped."""
    documents = [proposal.document() for proposal in proposals]
    start = 0
    while start < len(documents):
        mine = example_rows(documents[start:], row_len, num_rows)
        end = start + mine.num_examples
        if end == start:
            raise InvalidRequest(f"kto: {num_rows} rows of {row_len} tokens do not hold a proposal")
        if end == len(documents) and start:
            return
        picked = proposals[start:end]
        following = [*picked[1:], picked[0]]
        others = [replace(one, answer=other.answer).document() for one, other in zip(picked, following, strict=True)]
        fitting = [document for document in others if len(document.token_ids) <= row_len]
        yield FixedBatch(mine, np.arange(start, end), example_rows(fitting, row_len, num_kl_rows))
        start = end


class KtoTask(ScoredRows):
    """Implements `loop.Task`. `begin` must run once, with the reference loaded, before the first step."""

    def __init__(
        self,
        network: Network,
        proposals: Sequence[Proposal],
        spec: Kto,
        reserved_ids: Sequence[int],
        decode: Callable[[list[int]], str] = str,
    ) -> None:
        super().__init__(network, spec, reserved_ids)
        self.spec, self._proposals, self._decode = spec, proposals, decode
        self._batches = list(fixed_batches(proposals, spec.row_len, spec.rows_per_batch, spec.kl_rows))
        self.num_batches = len(self._batches)
        accepted = np.array([proposal.is_accepted for proposal in proposals])
        self._is_accepted = torch.from_numpy(accepted).to(network.device)
        self.weights = balanced_weights(int(accepted.sum()), int((~accepted).sum()))
        self._reference: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Start from an adapter, which is the reference, too."""
        self.warm_start(tensors)
        self._reference = [(self.log_probs(b.proposals), self._divergent(b)) for b in self._batches]

    @torch.no_grad()
    def scored(self) -> list[Proposal]:
        """The proposals of all batches, with their log-probabilities under the current adapter."""
        return [
            replace(self._proposals[number], log_prob=value)
            for batch in self._batches
            for number, value in zip(batch.numbers.tolist(), self.log_probs(batch.proposals).tolist(), strict=True)
        ]

    def step(self, number: int) -> StepReport:
        index = self.batch_index(number)
        batch, (reference, reference_kl) = self._batches[index], self._reference[index]
        is_accepted = self._is_accepted[torch.from_numpy(batch.numbers).to(self._is_accepted.device)]
        with torch.no_grad():
            # The divergence is an estimate over few pairs; it cannot be negative.
            divergence = (self._divergent(batch) - reference_kl).mean().clamp(min=0)
        log_ratio = self.log_probs(batch.proposals) - reference
        loss = kto_loss(log_ratio, is_accepted, divergence, self.spec.beta, self.weights)
        loss.backward()
        scalars = {"divergence": divergence, **_means(log_ratio.detach(), is_accepted)}
        return StepReport(loss.detach(), batch.proposals.rows.token_ids.size, scalars)

    def sample(self) -> str:
        """The first proposal and its judgement."""
        proposal = self._proposals[0]
        return f"{'accepted' if proposal.is_accepted else 'rejected'} {self._decode(proposal.answer)!r}"

    def _divergent(self, batch: FixedBatch) -> Tensor:
        if self.spec.loss == "apo_zero_unpaired":
            return torch.zeros(1, device=self.network.device)
        return self.log_probs(batch.mismatched)


def _means(log_ratio: Tensor, is_accepted: Tensor) -> dict[str, Tensor]:
    """Mean log-ratio of accepted and of rejected proposals."""
    return {
        name: (log_ratio * mask).sum() / mask.sum().clamp(min=1)
        for name, mask in (("accepted", is_accepted), ("rejected", ~is_accepted))
    }
