"""Measurements before and after a fine-tuning job: loss, token accuracy, and tokens that a draft round commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quicksilver.training.canvas import MASKS
from quicksilver.training.decode import BatchDecoder, CanvasWeights
from quicksilver.training.loss import loss_and_hits, rows_with_loss
from quicksilver.training.network import Lora, Network
from quicksilver.training.pack import Document
from quicksilver.training.proposals import Proposal, selectivity_curve
from quicksilver.training.service.examples import Example
from quicksilver.training.service.tasks import HEAD_CHUNK, LoraRows, packed, targets

# Documents of one forward.
BATCH = 16
CANVAS_LEN = 16
# Prompts whose answers are drafted, and the most tokens of an answer. A CPU takes minutes for more.
NUM_PROMPTS = {"cpu": 4, "cuda": 32}
MAX_NEW_TOKENS = {"cpu": 24, "cuda": 64}
MAX_PROMPT_LEN = 512
# Mean number of tokens that one round of draft and verification commits, and the same if every draft were right.
TOKENS_PER_ROUND, LIMIT = "tokens_per_round", "max_tokens_per_round"


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
        mean, num_right = loss_and_hits(hidden, rows.network.head, target, weight, nothing, HEAD_CHUNK)
        total += num * float(mean)
        hits += float(num_right)
        count += num
    return total / max(count, 1.0), hits / max(count, 1.0)


@torch.no_grad()
def selectivity(rows: LoraRows, examples: Sequence[Example], lora: Lora | None) -> dict[str, Any]:
    """What is shown and accepted of judged suggestions, if only those are shown whose whole answer has at least some
    log-probability: `curve` for eleven thresholds, and `all_accepted` for the highest one that loses no accepted
    suggestion. A threshold is a value for `min_logprob` of an edit request."""
    judged = []
    for start in range(0, len(examples), BATCH):
        part = examples[start : start + BATCH]
        totals = rows.log_probs([example.document for example in part], lora).tolist()
        for example, total in zip(part, totals, strict=True):
            ids, at = example.document.token_ids.tolist(), example.document.prompt_len
            judged.append(Proposal(ids[:at], ids[at:], "feedback", True, example.label, total))
    least = min((proposal.log_prob for proposal in judged if proposal.is_accepted), default=0.0)
    kept = [replace(proposal, is_shown=proposal.log_prob >= least) for proposal in judged]
    points = [*selectivity_curve(judged), selectivity_curve(kept, num_points=1)[0]]
    rounded = [{name: round(value, 5) for name, value in point.items()} for point in points]
    return {"num": len(judged), "curve": rounded[:-1], "all_accepted": rounded[-1]}


def draft_prompts(documents: Sequence[Document], num: int) -> list[list[int]]:
    """Prompts drawn evenly from the documents; long ones are left out."""
    prompts = [document.prompt() for document in documents if 0 < document.prompt_len <= MAX_PROMPT_LEN]
    return prompts[:: max(1, len(prompts) // num)][:num]


def draft_rates(
    network: Network, canvas: Mapping[str, Tensor] | None, documents: Sequence[Document], stop_ids: Sequence[int]
) -> dict[str, float]:
    """Tokens per round on prompts of the documents, and their limit; nothing without a canvas adapter."""
    device = network.device.type
    prompts = draft_prompts(documents, NUM_PROMPTS[device])
    if canvas is None or not prompts:
        return {}
    decoder = BatchDecoder(network, prompts, MAX_NEW_TOKENS[device], list(stop_ids))
    canvas_len = min(CANVAS_LEN, len(canvas[MASKS]) + 1)
    decoded = decoder.verify(CanvasWeights(canvas, canvas[MASKS]), canvas_len)
    total, least_rounds = decoded.num_tokens.sum(), -(-decoded.num_tokens // (canvas_len + 1)).sum()
    rounds = {TOKENS_PER_ROUND: decoded.num_rounds.sum(), LIMIT: least_rounds}
    return {name: float(total / num.clamp(min=1)) for name, num in rounds.items()}
