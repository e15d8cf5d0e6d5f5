"""Losses over a large vocabulary that never materialise all logits. The gradient of the head is computed explicitly.

All functions take hidden states after the final norm and the frozen head (vocab, dim), process them in chunks with an
fp32 softmax, and return the finished gradient to autograd. They equal the plain computation
(tests/training/test_loss.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftLoss:
    """Result of one canvas batch. Per-row tensors are (rows,) without gradient."""

    # Weighted mean of KL(teacher || student); differentiable with respect to the student's hidden states.
    loss: Tensor
    # Whether student and teacher have the same argmax.
    agrees: Tensor


def hard_chunk(hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed weighted cross-entropy of one chunk, d(sum)/d(logits) in the dtype of `hidden`, and how many rows with
    weight have their target as the likeliest token."""
    logits = F.linear(hidden, head).float()
    log_total = logits.logsumexp(-1, keepdim=True)
    loss = ((log_total[:, 0] - logits.gather(1, target[:, None])[:, 0]) * weight).sum()
    # A comparison instead of a scatter, because it fuses into one pass over the logits.
    is_target = torch.arange(head.shape[0], device=head.device) == target[:, None]
    grad = ((logits - log_total).exp() - is_target.float()) * weight[:, None]
    hits = ((logits.argmax(-1) == target) & (weight > 0)).sum()
    return loss, grad.to(hidden.dtype), hits


def measured_chunk(hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and hits of `hard_chunk`, without the gradient."""
    logits = F.linear(hidden, head).float()
    loss = ((logits.logsumexp(-1) - logits.gather(1, target[:, None])[:, 0]) * weight).sum()
    return loss, ((logits.argmax(-1) == target) & (weight > 0)).sum()


def soft_chunk(
    hidden: Tensor, teacher: Tensor, head: Tensor, weight: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed weighted KL to the teacher at `temperature`, agreement per row, and d(sum)/d(hidden)."""
    logits = F.linear(hidden, head).float()
    wanted = F.linear(teacher, head).float() / temperature
    log_student = logits - logits.logsumexp(-1, keepdim=True)
    log_teacher = wanted - wanted.logsumexp(-1, keepdim=True)
    probs = log_teacher.exp()
    loss = ((probs * (log_teacher - log_student)).sum(-1) * weight).sum()
    grad = ((log_student.exp() - probs) * weight[:, None]).to(hidden.dtype)
    return loss, logits.argmax(-1) == wanted.argmax(-1), grad @ head


class _AnswerLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, rows: Tensor, batch: tuple[Tensor, Tensor, int]
    ) -> tuple[Tensor, Tensor]:
        """rows: ids of the trained rows of the head. Only they receive a gradient."""
        target, weight, chunk_len = batch
        chunk = compiled(hard_chunk, hidden)
        grad_hidden, grad_rows = torch.empty_like(hidden), torch.zeros(len(rows), hidden.shape[1], device=hidden.device)
        total, hits = (torch.zeros((), device=hidden.device) for _ in range(2))
        for start in range(0, hidden.shape[0], chunk_len):
            span = slice(start, start + chunk_len)
            loss, grad, num_right = chunk(hidden[span], head, target[span], weight[span])
            total += loss
            hits += num_right
            grad_hidden[span] = grad @ head
            grad_rows += (grad[:, rows].T @ hidden[span]).float()
        ctx.save_for_backward(grad_hidden, grad_rows, rows)
        ctx.head_shape = head.shape
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        grad_hidden, grad_rows, rows = ctx.saved_tensors
        scale = grads[0]
        grad_head = None
        if ctx.needs_input_grad[1]:
            grad_head = grad_hidden.new_zeros(ctx.head_shape).index_copy(0, rows, (grad_rows * scale).to(grad_hidden))
        return grad_hidden * scale, grad_head, None, None


def answer_loss(
    hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor, trained_rows: Tensor, chunk_len: int = 8192
) -> Tensor:
    """Weighted mean cross-entropy of `target` (rows,). Only `trained_rows` of the head receive a gradient."""
    return loss_and_hits(hidden, head, target, weight, trained_rows, chunk_len)[0]


def loss_and_hits(
    hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor, trained_rows: Tensor, chunk_len: int = 8192
) -> tuple[Tensor, Tensor]:
    """As `answer_loss`, with the number of rows with weight whose likeliest token is the target."""
    if torch.is_grad_enabled():
        total, hits = _AnswerLoss.apply(hidden, head, trained_rows, (target, weight, chunk_len))
    else:
        chunk = compiled(measured_chunk, hidden)
        spans = (slice(start, start + chunk_len) for start in range(0, len(hidden), chunk_len))
        parts = zip(*(chunk(hidden[span], head, target[span], weight[span]) for span in spans), strict=True)
        total, hits = (torch.stack(each).sum() for each in parts)
    return total / weight.sum().clamp(min=1e-6), hits


def log_prob_chunk(hidden: Tensor, head: Tensor, target: Tensor) -> Tensor:
    """Log-probability of the target of each row of one chunk."""
    logits = F.linear(hidden, head).float()
    return logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(-1)


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, rows: Tensor, batch: tuple[Tensor, int]) -> Tensor:
        target, chunk_len = batch
        chunk = compiled(log_prob_chunk, hidden)
        parts = zip(hidden.split(chunk_len), target.split(chunk_len), strict=True)
        ctx.save_for_backward(hidden, head, rows, target)
        ctx.chunk_len = chunk_len
        return torch.cat([chunk(part, head, wanted) for part, wanted in parts])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, head, rows, target = ctx.saved_tensors
        chunk = compiled(hard_chunk, hidden)
        grad_hidden = torch.empty_like(hidden)
        grad_rows = torch.zeros(len(rows), hidden.shape[1], device=hidden.device)
        for start in range(0, hidden.shape[0], ctx.chunk_len):
            span = slice(start, start + ctx.chunk_len)
            _, grad, _ = chunk(hidden[span], head, target[span], -grads[0][span])
            grad_hidden[span] = grad @ head
            grad_rows += (grad[:, rows].T @ hidden[span]).float()
        grad_head = None
        if ctx.needs_input_grad[1]:
            grad_head = torch.zeros_like(head).index_copy(0, rows, grad_rows.to(head))
        return grad_hidden, grad_head, None, None


def token_log_probs(
    hidden: Tensor, head: Tensor, target: Tensor, trained_rows: Tensor, chunk_len: int = 8192
) -> Tensor:
    """(rows,) log-probabilities of `target`. Logits are computed again for the gradient instead of being kept."""
    result: Tensor = _TokenLogProbs.apply(hidden, head, trained_rows, (target, chunk_len))
    return result


# The number of a row that belongs to no answer.
NO_ANSWER = -1


def answer_log_probs(
    hidden: Tensor, head: Tensor, target: Tensor, number: Tensor, num_answers: int, trained_rows: Tensor, chunk_len: int
) -> Tensor:
    """(num_answers,) log-probabilities of whole answers. `number` (rows,) is that of the answer of each target."""
    rows = rows_with_loss((number >= 0).float(), chunk_len)
    found = token_log_probs(hidden.index_select(0, rows), head, target[rows], trained_rows, chunk_len)
    # Rows without an answer are added to a place after the last one.
    place = torch.where(number[rows] >= 0, number[rows], num_answers)
    return found.new_zeros(num_answers + 1).index_add(0, place, found)[:-1]


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, teacher: Tensor, head: Tensor, weight: Tensor, knobs: tuple[float, int, Any]
    ) -> tuple[Tensor, Tensor]:
        temperature, chunk_len, chunk = knobs
        grad_hidden = torch.empty_like(hidden)
        agrees = torch.zeros(hidden.shape[0], dtype=torch.bool, device=hidden.device)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, hidden.shape[0], chunk_len):
            span = slice(start, start + chunk_len)
            loss, agrees[span], grad_hidden[span] = chunk(hidden[span], teacher[span], head, weight[span], temperature)
            total += loss
        ctx.save_for_backward(grad_hidden)
        ctx.mark_non_differentiable(agrees)
        return total, agrees

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.saved_tensors[0] * grads[0], None, None, None, None


def draft_loss(
    hidden: Tensor, teacher: Tensor, head: Tensor, weight: Tensor, temperature: float = 0.6, chunk_len: int = 4096
) -> DraftLoss:
    """Weighted mean KL from the AR teacher's distribution at `temperature` to the drafting rows' distribution.

    hidden and teacher: (rows, dim), padded by the caller to whole chunks with rows of weight 0 for static shapes.
    """
    chunk = compiled(soft_chunk, hidden)
    total, agrees = _DraftLoss.apply(hidden, teacher, head, weight, (temperature, chunk_len, chunk))
    return DraftLoss(total / weight.sum().clamp(min=1e-6), agrees)


_compiled: dict[Any, Any] = {}


def compiled(function: Any, like: Tensor) -> Any:
    """Return `function` compiled with torch.compile on CUDA, once per process, and unchanged elsewhere."""
    if not like.is_cuda:
        return function
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=False)
    return _compiled[function]


def rows_with_loss(weight: Tensor, chunk_len: int, is_padded: bool | None = None) -> Tensor:
    """Indices of the rows with loss, at least one. Where functions are compiled (`is_padded`, by default on CUDA) they
    are padded to whole chunks with rows of weight 0, so that shapes repeat."""
    counts = weight > 0
    unit = chunk_len if (weight.is_cuda if is_padded is None else is_padded) else 1
    num_rows = -(-max(int(counts.sum()), 1) // unit) * unit
    return counts.to(torch.int8).argsort(descending=True, stable=True)[:num_rows]
