"""Trains the canvas adapter: a LoRA applied to canvas rows only, distilled from the predictions of the frozen base.

In one step the clean (unmasked) tokens run once without gradient and provide keys, values and hidden states. Random
canvases over generated tokens then run with the adapter and learn the distribution of the clean tokens' rows at each
position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.training.attention import CanvasAttention, CleanAttention
from quicksilver.training.batches import Batch, RowStore
from quicksilver.training.corrupt import Canvases, place_canvases, reveal, weigh
from quicksilver.training.loop import StepReport
from quicksilver.training.lora import copy_start, new_lora
from quicksilver.training.loss import draft_loss, rows_with_loss
from quicksilver.training.network import Lora, Network
from quicksilver.training.recipe import Canvas

MASKS = "mask_embedding"
Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class CanvasBatch:
    """The rows of one step, ready for the loss."""

    canvases: Canvases
    # (batch, canvases, canvas_len, dim) hidden states of the drafting rows, with gradient.
    hidden: Tensor
    # Hidden states of the clean stream at the same positions.
    teacher: Tensor


class CanvasTask:
    """Implements `loop.Task`. Parameters: LoRA pairs and `mask_embedding` (max_canvas_len, dim)."""

    def __init__(self, network: Network, store: RowStore, spec: Canvas, decode: Decode) -> None:
        self.network, self.store, self.spec, self._decode = network, store, spec, decode
        self._lora = new_lora(network.config, spec.rank, spec.optim.seed, network.device)
        mean = network.model.tokens.weight.detach().float().mean(0, keepdim=True)
        self.masks = mean.repeat(spec.max_canvas_len, 1).requires_grad_()
        self.parameters = {**self._lora, MASKS: self.masks}

    def warm_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Initialise from another adapter. A higher rank is truncated to the largest singular values."""
        copy_start(self.parameters, tensors, self.spec.rank)

    def lora(self) -> Lora:
        """Pairs of the drafting rows."""
        return self._lora

    def step(self, number: int) -> StepReport:
        batch = self.store.batch(number)
        drafted = self.draft(batch, self._canvases(batch, number))
        weight = drafted.canvases.weight.flatten()
        rows = rows_with_loss(weight, self.spec.head_chunk)
        hidden, teacher = (t.flatten(0, 2).index_select(0, rows) for t in (drafted.hidden, drafted.teacher))
        temperature, chunk_len = self.spec.teacher_temperature, self.spec.head_chunk
        result = draft_loss(hidden, teacher, self.network.head, weight[rows], temperature, chunk_len)
        result.loss.backward()
        agrees = torch.zeros_like(weight, dtype=torch.bool)
        agrees[rows] = result.agrees & (weight[rows] > 0)
        scalars = agreement(agrees.view_as(drafted.canvases.weight), drafted.canvases)
        return StepReport(result.loss.detach(), weight.numel(), scalars)

    def draft(self, batch: Batch, canvases: Canvases) -> CanvasBatch:
        teacher, clean = self.clean_rows(batch)
        shape = canvases.slot.shape
        x = self._canvas_rows(self.network.embed(batch.token_ids), canvases)
        index = torch.arange(shape[2], device=x.device)
        positions = batch.positions.gather(1, canvases.anchor)[..., None] + 1 + index
        attention = CanvasAttention(canvases, batch.doc_id, clean)
        hidden = self.network.forward(x.flatten(1, 2), positions.flatten(1), attention, self.lora())
        return CanvasBatch(canvases, hidden.view(*shape, -1), at_slots(teacher, canvases.slot))

    @torch.no_grad()
    def clean_rows(self, batch: Batch) -> tuple[Tensor, CleanAttention]:
        """Hidden states of the clean tokens, and their keys and values."""
        clean = CleanAttention(batch.doc_id)
        return self.network.forward(self.network.embed(batch.token_ids), batch.positions, clean), clean

    def _canvas_rows(self, tokens: Tensor, canvases: Canvases) -> Tensor:
        masks = self.masks[: canvases.slot.shape[2]].to(tokens.dtype)
        if not self.spec.revealed_share:
            return masks.expand(*canvases.slot.shape, -1)
        return torch.where(canvases.is_revealed[..., None], at_slots(tokens, canvases.slot), masks)

    def _canvases(self, batch: Batch, number: int) -> Canvases:
        generator = torch.Generator(self.network.device).manual_seed(self.spec.optim.seed * 1_000_003 + number)
        canvas_len = self.spec.canvas_lens[_mixed(number) % len(self.spec.canvas_lens)]
        num_canvases = self.spec.canvas_rows // canvas_len
        placed = place_canvases(batch.is_answer & ~batch.is_text, batch.doc_id, canvas_len, num_canvases, generator)
        shown = reveal(tuple(placed.slot.shape), self.spec.revealed_share, generator)
        return weigh(placed, shown, self.spec.index_decay)

    @torch.no_grad()
    def sample(self) -> str:
        """One held-out canvas: the continuation of the AR stream, and the draft of one forward."""
        batch = self.store.batch(0)
        drafted = self.draft(batch, self._canvases(batch, 0))
        place = int(drafted.canvases.weight.sum(-1).flatten().argmax())
        rows = (t.flatten(0, 1)[place] @ self.network.head.T for t in (drafted.teacher, drafted.hidden))
        wanted, got = (self._decode(logits.argmax(-1).tolist()) for logits in rows)
        return f"AR    {wanted!r}\n{'':>12}draft {got!r}"


def at_slots(rows: Tensor, slot: Tensor) -> Tensor:
    """rows (batch, row_len, dim) at slot (batch, canvases, canvas_len)."""
    flat = slot.flatten(1)[..., None].expand(-1, -1, rows.shape[-1])
    return rows.gather(1, flat).view(*slot.shape, -1)


def agreement(agrees: Tensor, canvases: Canvases) -> dict[str, Tensor]:
    """Share of rows 0, 4 and 8 that match the AR argmax, and the resulting tokens per verify round."""
    counts = canvases.weight > 0
    is_blank = counts[..., 0] & ~canvases.is_revealed.any(-1)
    scalars = {}
    for index in (0, 4, 8):
        if index < agrees.shape[-1]:
            seen = counts[..., index] & is_blank
            scalars[f"top1_{index}"] = (agrees[..., index] & seen).sum() / seen.sum().clamp(min=1)
    accepted = (agrees.long().cumprod(-1).sum(-1) * is_blank).sum() / is_blank.sum().clamp(min=1)
    scalars["tokens_per_round"] = accepted + 2
    return scalars


def _mixed(number: int) -> int:
    """Scramble step numbers, so that list entries are drawn evenly and without a period."""
    return (number * 2_654_435_761) >> 7
