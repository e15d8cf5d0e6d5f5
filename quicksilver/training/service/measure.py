"""Measurements before and after a fine-tuning job: loss, token accuracy, and tokens that a draft round commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from quicksilver.training.canvas import MASKS
from quicksilver.training.decode import BatchDecoder, CanvasWeights
from quicksilver.training.export import canvas_tensors
from quicksilver.training.loss import answer_loss, rows_with_loss
from quicksilver.training.network import Lora, Network
from quicksilver.training.pack import Document
from quicksilver.training.service.tasks import HEAD_CHUNK, LoraRows, num_hits, packed, targets

# Documents of one forward.
BATCH = 8
CANVAS_LEN = 16
# Prompts whose answers are drafted, and the most tokens of an answer. A CPU takes minutes for more.
NUM_PROMPTS = {"cpu": 4, "cuda": 32}
MAX_NEW_TOKENS = {"cpu": 24, "cuda": 64}
MAX_PROMPT_LEN = 512


@torch.no_grad()
def losses(rows: LoraRows, documents: Sequence[Document], lora: Lora | None) -> tuple[float, float]:
    """Mean loss of the answer tokens, and the share whose likeliest token is right."""
    nothing = torch.empty(0, dtype=torch.long, device=rows.network.device)
    total, hits, count = 0.0, 0.0, 0.0
    for start in range(0, len(documents), BATCH):
        laid = packed(documents[start : start + BATCH], rows.network.device)
        target, number = targets(laid)
        weight = (number >= 0).float()
        picked = rows_with_loss(weight, HEAD_CHUNK)
        hidden, target, weight = rows.hidden(laid, lora)[picked], target[picked], weight[picked]
        num = float(weight.sum())
        total += num * float(answer_loss(hidden, rows.network.head, target, weight, nothing, HEAD_CHUNK))
        hits += float(num_hits(hidden, rows.network.head, target, weight))
        count += num
    return total / max(count, 1.0), hits / max(count, 1.0)


def draft_prompts(documents: Sequence[Document], device: torch.device) -> list[list[int]]:
    """Prompts drawn evenly from the documents; long ones are left out."""
    prompts = [document.prompt() for document in documents if 0 < document.prompt_len <= MAX_PROMPT_LEN]
    num = NUM_PROMPTS[device.type]
    return prompts[:: max(1, len(prompts) // num)][:num]


def tokens_per_round(
    network: Network, canvas: Path | None, prompts: Sequence[list[int]], stop_ids: Sequence[int]
) -> float | None:
    """Mean number of tokens that one round of draft and verification commits; None without a canvas adapter."""
    if canvas is None or not prompts:
        return None
    tensors = {name: tensor.to(network.device) for name, tensor in canvas_tensors(canvas).items()}
    decoder = BatchDecoder(network, list(prompts), MAX_NEW_TOKENS[network.device.type], list(stop_ids))
    decoded = decoder.verify(CanvasWeights(tensors, tensors[MASKS]), min(CANVAS_LEN, len(tensors[MASKS]) + 1))
    return float(decoded.num_tokens.sum() / decoded.num_rounds.sum().clamp(min=1))
