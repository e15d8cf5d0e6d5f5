"""Training tasks of fine-tuning jobs: a LoRA on every row of the frozen base, by cross-entropy, DPO or KTO.

The examples of a step depend on the seed and the step's number alone. A step whose examples have many tokens is
computed in parts, in a fixed order; the gradient is that of the whole step. The reference of DPO and KTO is the base
without the LoRA, computed in the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.training.attention import SHARED, DocumentAttention
from quicksilver.training.batches import Batch
from quicksilver.training.kto import Weights, balanced_weights, kto_loss
from quicksilver.training.loop import StepReport
from quicksilver.training.lora import new_lora
from quicksilver.training.loss import NO_ANSWER, answer_log_probs, loss_and_hits, rows_with_loss
from quicksilver.training.network import Lora, Network
from quicksilver.training.pack import Document
from quicksilver.training.pairs import dpo_loss
from quicksilver.training.service.examples import Example, with_answer_of

# Rows whose logits are in memory at a time.
HEAD_CHUNK = 512
# Row lengths are rounded up. The attention kernels of a GPU want masks with aligned rows.
LEN_STEP = {"cpu": 8, "cuda": 32}
# Rows on a CPU are at most this long unless an example is longer. A row of ATTENTION_LEN tokens takes as long in
# attention as in the linears (nano).
MAX_ROW_LEN, ATTENTION_LEN = 512, 700
# Tokens of one forward and backward, which decide the memory of a step. A longer example is computed alone.
MAX_PART_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How the examples are divided into steps."""

    num_examples: int
    batch_size: int
    num_epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches have at least `batch_size` examples if there are as many, so that KTO has another answer to compare
        with."""
        return max(1, self.num_examples // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.num_epochs

    def indices(self, step: int) -> list[int]:
        """The examples of a step. Every epoch has its own order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        size, num_larger = divmod(self.num_examples, self.steps_per_epoch)
        start = place * size + min(place, num_larger)
        end = start + size + (place < num_larger)
        picked: list[int] = _epoch_order(self.seed, epoch, self.num_examples)[start:end].tolist()
        return picked


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, num_examples: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


def parts_of(lengths: Sequence[int]) -> Iterator[slice]:
    """Consecutive spans of at most `MAX_PART_TOKENS` tokens; a longer item is a span of its own."""
    start, total = 0, 0
    for index, length in enumerate(lengths):
        if index > start and total + length > MAX_PART_TOKENS:
            yield slice(start, index)
            start, total = index, 0
        total += length
    yield slice(start, len(lengths))


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """Documents packed into rows, and the number of the document at each answer token (-1 elsewhere)."""

    batch: Batch
    document: Tensor


def shared_len(documents: Sequence[Document]) -> int:
    """Length of the prefix that all documents have, as chats with one system message do. No answer follows it at once,
    so that every document has its own token before its answer."""
    if len(documents) < 2:
        return 0
    first = documents[0].token_ids
    end = min(int(np.append(document.is_answer, True).argmax()) - 1 for document in documents)
    for document in documents[1:]:
        end = min(end, len(document.token_ids))
        differs = first[: max(end, 0)] != document.token_ids[: max(end, 0)]
        end = int(differs.argmax()) if differs.any() else end
    return max(end, 0)


def filled(lengths: Sequence[int], row_len: int) -> list[list[int]]:
    """Rows of item numbers, each item in the first row with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number, length in enumerate(lengths):
        row = next((i for i, space in enumerate(room) if space >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_len)
        rows[row].append(number)
        room[row] -= length
    return rows


def row_lens(longest: int, device: torch.device) -> range:
    """Lengths that rows may have."""
    step = LEN_STEP[device.type]
    least = -(-longest // step) * step
    return range(least, max(least, MAX_ROW_LEN if device.type == "cpu" else 0) + 1, step)


def packed(documents: Sequence[Document], device: torch.device) -> PackedDocuments:
    """Documents in rows of the length that takes the least time. A row begins with the shared prefix, once."""
    shared = shared_len(documents)
    lengths = [len(document.token_ids) - shared for document in documents]
    layouts = [(row_len, filled(lengths, row_len - shared)) for row_len in row_lens(shared + max(lengths), device)]
    row_len, rows = min(layouts, key=lambda layout: len(layout[1]) * layout[0] * (1 + layout[0] / ATTENTION_LEN))
    shape = (len(rows), row_len)
    token_ids, doc_id, positions = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    token_ids[:, :shared], doc_id[:, :shared] = documents[0].token_ids[:shared], SHARED
    positions[:, :shared] = np.arange(shared)
    answer = np.full(shape, NO_ANSWER, dtype=np.int64)
    for row, numbers in enumerate(rows):
        at = shared
        for place, number in enumerate(numbers, start=1):
            document, end = documents[number], at + lengths[number]
            token_ids[row, at:end], doc_id[row, at:end] = document.token_ids[shared:], place
            positions[row, at:end] = shared + np.arange(end - at)
            answer[row, at:end] = np.where(document.is_answer[shared:], number, NO_ANSWER)
            at = end
    ids, docs, places, owner = (torch.from_numpy(each).to(device) for each in (token_ids, doc_id, positions, answer))
    is_answer = owner >= 0
    return PackedDocuments(Batch(ids, docs, places, is_answer, torch.zeros_like(is_answer)), owner)


def targets(rows: PackedDocuments) -> tuple[Tensor, Tensor]:
    """Flat next tokens, and the number of the document whose answer each belongs to (-1: none)."""
    target = rows.batch.token_ids.roll(-1, dims=1)
    number = rows.document.roll(-1, dims=1).clone()
    number[:, -1] = NO_ANSWER
    number[rows.batch.doc_id != rows.batch.doc_id.roll(-1, dims=1)] = NO_ANSWER
    return target.flatten(), number.flatten()


class LoraRows:
    """Causal rows of the frozen base with a trainable LoRA."""

    def __init__(self, network: Network, examples: Sequence[Example], plan: StepPlan, rank: int) -> None:
        self.network, self.examples, self.plan = network, examples, plan
        self.parameters = new_lora(network.config, rank, plan.seed, network.device)
        self._nothing = torch.empty(0, dtype=torch.long, device=network.device)

    def hidden(self, rows: PackedDocuments, lora: Lora | None) -> Tensor:
        batch = rows.batch
        x = self.network.embed(batch.token_ids)
        # Rows of jobs have many lengths, so FlexAttention would be compiled in most steps.
        attention = DocumentAttention(batch.doc_id, is_flex=False)
        return self.network.forward(x, batch.positions, attention, lora).flatten(0, 1)

    def log_probs(self, documents: Sequence[Document], lora: Lora | None) -> Tensor:
        """(documents,) log-probability of each answer."""
        rows = packed(documents, self.network.device)
        ids = (*targets(rows), len(documents))
        return answer_log_probs(self.hidden(rows, lora), self.network.head, *ids, self._nothing, HEAD_CHUNK)

    @torch.no_grad()
    def divergence(self, documents: Sequence[Document]) -> Tensor:
        """Mean log-ratio. It is an estimate over few documents and cannot be negative."""
        spans = parts_of([len(document.token_ids) for document in documents])
        return torch.cat([self.log_ratio(documents[span]) for span in spans]).mean().clamp(min=0)

    def log_ratio(self, documents: Sequence[Document]) -> Tensor:
        """Log-probabilities less those of the base."""
        with torch.no_grad():
            reference = self.log_probs(documents, None)
        return self.log_probs(documents, self.parameters) - reference

    def picked(self, step: int) -> list[Example]:
        return [self.examples[index] for index in self.plan.indices(step)]

    def sample(self) -> str:
        return ""


class SupervisedTask(LoraRows):
    """Mean cross-entropy of the answer tokens."""

    def step(self, number: int) -> StepReport:
        documents = [example.document for example in self.picked(number)]
        # The first token of a document has no target.
        num_targets = max(1, sum(int(document.is_answer[1:].sum()) for document in documents))
        spans = parts_of([len(document.token_ids) for document in documents])
        losses, hits, num_rows = zip(*(self._part(documents[span], num_targets) for span in spans), strict=True)
        accuracy = torch.stack(hits).sum() / num_targets
        return StepReport(torch.stack(losses).sum(), sum(num_rows), {"accuracy": accuracy})

    def _part(self, documents: Sequence[Document], num_targets: int) -> tuple[Tensor, Tensor, int]:
        """Adds the gradient of some documents of a step; their share of the loss, their hits and their rows."""
        rows = packed(documents, self.network.device)
        target, document = targets(rows)
        weight = (document >= 0).float()
        picked = rows_with_loss(weight, HEAD_CHUNK)
        hidden = self.hidden(rows, self.parameters).index_select(0, picked)
        head, target, weight = self.network.head, target[picked], weight[picked]
        mean, hits = loss_and_hits(hidden, head, target, weight, self._nothing, HEAD_CHUNK)
        loss = mean * (weight.sum() / num_targets)
        loss.backward()
        return loss.detach(), hits, rows.batch.token_ids.numel()


class DpoTask(LoraRows):
    """Direct preference optimisation: -log sigmoid(beta (r_chosen - r_rejected)), r the log-ratio to the base."""

    def __init__(self, network: Network, examples: Sequence[Example], plan: StepPlan, rank: int, beta: float) -> None:
        super().__init__(network, examples, plan, rank)
        self._beta = beta

    def step(self, number: int) -> StepReport:
        examples = self.picked(number)
        lengths = [example.num_tokens for example in examples]
        losses, margins = zip(*(self._part(examples[span], len(examples)) for span in parts_of(lengths)), strict=True)
        margin = torch.cat(margins)
        scalars = {"accuracy": (margin > 0).float().mean(), "margin": margin.mean()}
        return StepReport(torch.stack(losses).sum(), sum(lengths), scalars)

    def _part(self, examples: Sequence[Example], num_pairs: int) -> tuple[Tensor, Tensor]:
        """Adds the gradient of some pairs of a step; their share of the loss, and their margins."""
        rejected = [example.rejected for example in examples if example.rejected is not None]
        documents = [*(example.document for example in examples), *rejected]
        chosen, other = self.log_ratio(documents).split(len(examples))
        mean, margin = dpo_loss(chosen, other, self._beta)
        loss = mean * (len(examples) / num_pairs)
        loss.backward()
        return loss.detach(), margin.detach()


class KtoJobTask(LoraRows):
    """KTO on judged answers; the divergence is estimated on prompts with the next answer of the batch."""

    def __init__(self, network: Network, examples: Sequence[Example], plan: StepPlan, rank: int, beta: float) -> None:
        super().__init__(network, examples, plan, rank)
        self._beta = beta
        accepted, rejected = (sum(each.weight for each in examples if each.label is label) for label in (True, False))
        self.weights: Weights = balanced_weights(accepted, rejected)

    def step(self, number: int) -> StepReport:
        examples = self.picked(number)
        documents = [example.document for example in examples]
        mismatched = [with_answer_of(a, b) for a, b in zip(documents, documents[1:] + documents[:1], strict=True)]
        divergence = self.divergence(mismatched)
        lengths = [example.num_tokens for example in examples]
        parts = (self._part(examples[span], divergence, len(examples)) for span in parts_of(lengths))
        losses, agrees = zip(*parts, strict=True)
        scalars = {"accuracy": torch.cat(agrees).float().mean(), "divergence": divergence}
        return StepReport(torch.stack(losses).sum(), sum(lengths), scalars)

    def _part(self, examples: Sequence[Example], divergence: Tensor, num_examples: int) -> tuple[Tensor, Tensor]:
        """Adds the gradient of some examples of a step; their share of the loss, and which fit their label."""
        device = self.network.device
        label = torch.tensor([example.label for example in examples], device=device)
        weight = torch.tensor([example.weight for example in examples], device=device)
        log_ratio = self.log_ratio([example.document for example in examples])
        mean = kto_loss(log_ratio, label, divergence, self._beta, self.weights, weight)
        loss = mean * (len(examples) / num_examples)
        loss.backward()
        return loss.detach(), (log_ratio.detach() > divergence) == label


JobTask = SupervisedTask | DpoTask | KtoJobTask


def make_task(
    method: str, network: Network, examples: Sequence[Example], plan: StepPlan, chosen: Mapping[str, float]
) -> JobTask:
    """`chosen` are the resolved hyperparameters of the method."""
    rank = int(chosen["rank"])
    if method == "supervised":
        return SupervisedTask(network, examples, plan, rank)
    task = DpoTask if method == "dpo" else KtoJobTask
    return task(network, examples, plan, rank, float(chosen["beta"]))
