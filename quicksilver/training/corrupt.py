"""The forward (masking) process of canvas training: the positions of canvases in a packed training sequence, and which
canvas rows contain their token instead of a mask.

All random numbers come from the caller's generator, so a step can be repeated. A canvas is `canvas_len` rows after an
anchor token: row i is at position anchor + 1 + i and predicts token anchor + 2 + i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.training.schedule import index_weight


@dataclass(frozen=True, slots=True)
class Canvases:
    """Canvases of a batch of packed rows; all tensors are (batch, num_canvases, canvas_len) unless stated otherwise."""

    # (batch, num_canvases): index in the packed row of the last committed token, ascending.
    anchor: Tensor
    # Index in the packed sequence of the token at the position of each canvas row, clamped to the sequence.
    slot: Tensor
    is_revealed: Tensor
    # Loss weight of each row; 0 where the predicted token is not a generated token of the anchor's document.
    weight: Tensor


def sample_anchors(is_target: Tensor, num_canvases: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random anchors whose first drafted token (anchor + 2) is a target, ascending, and which of them are in use.

    is_target: (batch, row_len) bool. Sequences with fewer such positions get unused anchors at index 0.
    """
    batch, row_len = is_target.shape
    can_anchor = torch.zeros_like(is_target)
    can_anchor[:, : row_len - 2] = is_target[:, 2:]
    order = torch.rand(batch, row_len, generator=generator, device=is_target.device).masked_fill(~can_anchor, -1.0)
    best = order.topk(min(num_canvases, row_len), dim=1)
    is_real = best.values >= 0
    anchor, by_place = torch.where(is_real, best.indices, 0).sort(dim=1)
    return anchor, is_real.gather(1, by_place)


def reveal(shape: tuple[int, ...], share: float, generator: torch.Generator) -> Tensor:
    """Which rows of each canvas show their token. In `share` of the canvases a prefix and some random rows are
    revealed."""
    *outer, canvas_len = shape
    draw = torch.rand(*outer, 3, generator=generator, device=generator.device)
    scatter = torch.rand(shape, generator=generator, device=generator.device)
    index = torch.arange(canvas_len, device=generator.device)
    prefix_len = (draw[..., 1:2] * canvas_len * 0.75).long()
    return (draw[..., :1] < share) & ((index < prefix_len) | (scatter < draw[..., 2:] * 0.5))


def distance_to_known(is_revealed: Tensor) -> Tensor:
    """For each row, the number of undecided rows since the last revealed row or the anchor."""
    index = torch.arange(is_revealed.shape[-1], device=is_revealed.device)
    last_known = torch.where(is_revealed, index, -1).cummax(dim=-1).values
    return (index - last_known - 1).clamp(min=0)


def place_canvases(
    is_target: Tensor, doc_id: Tensor, canvas_len: int, num_canvases: int, generator: torch.Generator
) -> Canvases:
    """Fully masked canvases over targets; `doc_id` (batch, row_len) keeps each inside the anchor's document."""
    batch, row_len = is_target.shape
    anchor, is_real = sample_anchors(is_target, num_canvases, generator)
    num_canvases = anchor.shape[1]
    raw = anchor[..., None] + 1 + torch.arange(canvas_len, device=anchor.device)
    slot, next_slot = raw.clamp(max=row_len - 1), (raw + 1).clamp(max=row_len - 1)
    flat = next_slot.reshape(batch, -1)
    same_doc = doc_id.gather(1, flat).view_as(slot) == doc_id.gather(1, anchor)[..., None]
    counts = is_target.gather(1, flat).view_as(slot) & same_doc & (raw + 1 < row_len) & is_real[..., None]
    is_revealed = torch.zeros(batch, num_canvases, canvas_len, dtype=torch.bool, device=anchor.device)
    return Canvases(anchor, slot, is_revealed, counts.float())


def weigh(canvases: Canvases, is_revealed: Tensor, decay: float) -> Canvases:
    """Reveal rows and set the loss weights. A row whose successor is revealed gets weight 0."""
    counts = canvases.weight > 0
    shown = is_revealed & counts
    next_shown = torch.zeros_like(shown)
    next_shown[..., :-1] = shown[..., 1:]
    weight = index_weight(distance_to_known(shown), decay) * (counts & ~next_shown)
    return Canvases(canvases.anchor, canvases.slot, shown, weight)
