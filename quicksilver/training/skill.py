"""Trains the skill adapter: an ordinary LoRA on all rows, and embeddings of reserved tokens, with loss on answers only.

The adapter is merged into the base before serving, so it applies to every row here. Plain-text documents have their own
loss weight; they preserve general language ability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from quicksilver.training.attention import DocumentAttention
from quicksilver.training.batches import Batch, RowStore
from quicksilver.training.loop import StepReport
from quicksilver.training.lora import copy_start, new_lora
from quicksilver.training.loss import answer_loss, rows_with_loss
from quicksilver.training.network import Network
from quicksilver.training.recipe import Skill

RESERVED = "reserved"
# Tokens of an answer that a sample shows.
SAMPLE_LEN = 48


class SkilledRows:
    """Causal rows of the frozen base with a trainable skill.

    Parameters: LoRA pairs and `reserved` (num_reserved, dim).
    """

    def __init__(self, network: Network, rank: int, seed: int, reserved_ids: Sequence[int]) -> None:
        self.network, self._rank = network, rank
        self.reserved_ids = torch.tensor(sorted(reserved_ids), device=network.device)
        self._lora = new_lora(network.config, rank, seed, network.device)
        reserved = network.model.tokens.weight.detach()[self.reserved_ids].float().clone().requires_grad_()
        self.parameters = {**self._lora, RESERVED: reserved}

    def warm_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Initialise from another adapter with the same reserved tokens. A higher rank is truncated."""
        copy_start(self.parameters, tensors, self._rank)

    def hidden(self, batch: Batch) -> Tensor:
        attention = DocumentAttention(batch.doc_id)
        return self.network.forward(self.embed(batch.token_ids), batch.positions, attention, self._lora)

    def embed(self, token_ids: Tensor) -> Tensor:
        frozen = self.network.embed(token_ids)
        # One-hot times table: its gradient is a small matrix product instead of a scatter.
        is_reserved = token_ids[..., None] == self.reserved_ids
        learned = is_reserved.to(frozen.dtype) @ self.parameters[RESERVED].to(frozen.dtype)
        return torch.where(is_reserved.any(-1, keepdim=True), learned, frozen)

    def head(self) -> Tensor:
        frozen = self.network.head
        return frozen.index_copy(0, self.reserved_ids, self.parameters[RESERVED].to(frozen.dtype))


class SkillTask(SkilledRows):
    """Implements `loop.Task`: cross-entropy of answers."""

    def __init__(
        self,
        network: Network,
        store: RowStore,
        spec: Skill,
        reserved_ids: Sequence[int],
        decode: Callable[[list[int]], str] = str,
    ) -> None:
        super().__init__(network, spec.rank, spec.optim.seed, reserved_ids)
        self.store, self.spec, self._decode = store, spec, decode

    def step(self, number: int) -> StepReport:
        batch = self.store.batch(number)
        loss = self.loss(batch)
        loss.backward()
        return StepReport(loss.detach(), batch.token_ids.numel())

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy over answers (and text, by its weight) of one batch."""
        hidden = self.hidden(batch).flatten(0, 1)
        target, weight = next_token_targets(batch, self.spec.text_weight)
        rows = rows_with_loss(weight, self.spec.head_chunk)
        return answer_loss(
            hidden.index_select(0, rows),
            self.head(),
            target[rows],
            weight[rows],
            self.reserved_ids,
            self.spec.head_chunk,
        )

    @torch.no_grad()
    def sample(self) -> str:
        """The first answer of the first batch: its tokens, and the argmax of the trained rows at the same positions."""
        batch = self.store.batch(0)
        target, weight = (flat.view_as(batch.token_ids)[0] for flat in next_token_targets(batch, self.spec.text_weight))
        rows = weight.nonzero()[:SAMPLE_LEN, 0]
        proposed = (self.hidden(batch)[0, rows] @ self.head().T).argmax(-1)
        return f"answer {self._decode(target[rows].tolist())!r}\n{'':>12}model  {self._decode(proposed.tolist())!r}"


def next_token_targets(batch: Batch, text_weight: float) -> tuple[Tensor, Tensor]:
    """Flat (rows,) next tokens and loss weights. The last token of a document and padding have no target."""
    target = batch.token_ids.roll(-1, dims=1)
    counts = batch.is_answer.roll(-1, dims=1)
    counts[:, -1] = False
    counts &= batch.doc_id == batch.doc_id.roll(-1, dims=1)
    weight = torch.where(batch.is_text.roll(-1, dims=1), text_weight, 1.0) * counts
    return target.flatten(), weight.flatten()
