"""Preference training by DPO on pairs: the expected answer to a next-edit request above the model's own wrong one.

A wrong answer is another edit, no edit where one was expected, or any edit where none was. The loss also has the
cross-entropy of the expected answers, because DPO alone can lower the likelihood of both sides. The reference is the
skill adapter that training starts from; its log-probabilities are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.training.example_rows import ExampleRows, ScoredRows, example_rows
from quicksilver.training.loop import StepReport
from quicksilver.training.network import Network
from quicksilver.training.proposals import Proposal
from quicksilver.training.recipe import Pairs


def wrong_proposals(proposals: Sequence[Proposal], row_len: int, most: int, seed: int) -> list[Proposal]:
    """At most `most` rejected proposals with an expected answer, in a random order; both sides fit a row."""
    found = [
        p
        for p in proposals
        if not p.is_accepted and p.answer and p.expected and p.answer != p.expected
        and len(p.prompt) + max(len(p.answer), len(p.expected)) <= row_len
    ]  # fmt: skip
    order = np.random.default_rng(seed).permutation(len(found))
    return [found[i] for i in order[: most or len(found)]]


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Expected and rejected answers of one step, alternating, and the mean length of the expected ones."""

    examples: ExampleRows
    mean_len: float


def pair_batches(proposals: Sequence[Proposal], row_len: int, num_rows: int) -> list[PairBatch]:
    """Batches of whole pairs that fill at most `num_rows` rows. What is left at the end is dropped."""
    documents = [side for p in proposals for side in (p.expected_document(), p.document())]
    batches: list[PairBatch] = []
    start = 0
    while start < len(documents):
        examples = example_rows(documents[start:], row_len, num_rows, group_len=2)
        end = start + examples.num_examples
        if end == start:
            raise InvalidRequest(f"pairs.rows_per_batch: {num_rows} rows of {row_len} tokens do not hold a pair")
        if end == len(documents) and batches:
            break
        picked = proposals[start // 2 : end // 2]
        batches.append(PairBatch(examples, sum(len(p.expected) for p in picked) / len(picked)))
        start = end
    return batches


def dpo_loss(chosen: Tensor, rejected: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Mean loss over pairs, and the scaled margin of each pair. The arguments are log-ratios to the reference."""
    margin = beta * (chosen - rejected)
    return -F.logsigmoid(margin).mean(), margin


def pair_loss(log_ratio: Tensor, log_prob: Tensor, mean_len: float, spec: Pairs) -> tuple[Tensor, Tensor]:
    """-> the loss, and the margin of each pair.

    `log_ratio` (pairs, 2): log-probability of the expected and of the rejected answer less that under the reference.
    `log_prob` (pairs,): of the expected answers.
    """
    loss, margin = dpo_loss(log_ratio[:, 0], log_ratio[:, 1], spec.beta)
    return loss - spec.expected_weight * log_prob.mean() / mean_len, margin


class PairTask(ScoredRows):
    """Implements `loop.Task`. `begin` must run once before the first step."""

    def __init__(
        self,
        network: Network,
        proposals: Sequence[Proposal],
        spec: Pairs,
        reserved_ids: Sequence[int],
        decode: Callable[[list[int]], str] = str,
    ) -> None:
        super().__init__(network, spec, reserved_ids)
        if not proposals:
            raise InvalidRequest("the pairs stage needs rejected proposals with an expected answer")
        self.spec, self._decode, self._first = spec, decode, proposals[0]
        self._batches = pair_batches(proposals, spec.row_len, spec.rows_per_batch)
        self.num_batches = len(self._batches)
        self._reference: list[Tensor] = []

    @torch.no_grad()
    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Start from an adapter, which is the reference, too."""
        self.warm_start(tensors)
        self._reference = [self.log_probs(batch.examples) for batch in self._batches]

    def step(self, number: int) -> StepReport:
        index = self.batch_index(number)
        batch = self._batches[index]
        log_prob = self.log_probs(batch.examples)
        log_ratio = (log_prob - self._reference[index]).view(-1, 2)
        loss, margin = pair_loss(log_ratio, log_prob.view(-1, 2)[:, 0], batch.mean_len, self.spec)
        loss.backward()
        expected, rejected = log_ratio.detach().mean(0)
        scalars = {"accuracy": (margin > 0).float().mean(), "expected": expected, "rejected": rejected}
        return StepReport(loss.detach(), batch.examples.rows.token_ids.size, scalars)

    def sample(self) -> str:
        """The first pair."""
        return f"expected {self._decode(self._first.expected)!r}, rejected {self._decode(self._first.answer)!r}"
