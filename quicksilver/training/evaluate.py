"""Quick held-out measurements: tokens per verify round and per forward by domain, agreement with AR, held-out loss.

They run after each stage on prompts that were not trained on. The output of `verify` is compared with that of AR: they
may differ only where two logits tie in the arithmetic used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from quicksilver.training.attention import DocumentAttention
from quicksilver.training.batches import RowStore
from quicksilver.training.decode import BatchDecoder, CanvasWeights, Decoded
from quicksilver.training.generate import PromptSet
from quicksilver.training.loss import answer_loss, rows_with_loss
from quicksilver.training.network import Network, as_written
from quicksilver.training.recipe import Evaluate
from quicksilver.training.skill import next_token_targets


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Prompts with their domains, and the stop token ids."""

    prompts: PromptSet
    domain_names: tuple[str, ...]
    stop_ids: tuple[int, ...]


def measure_drafts(network: Network, weights: CanvasWeights, held_out: HeldOut, spec: Evaluate) -> dict[str, Any]:
    """Tokens per round and agreement with AR, by decoder (`confident` is `confidence` of serving) and domain."""
    plain = Network(network.model, as_written)  # not compiled, because shapes do not repeat
    count = min(held_out.prompts.num_prompts, spec.batch)
    picked = torch.linspace(0, held_out.prompts.num_prompts - 1, count).long().unique().tolist()
    prompts = [held_out.prompts.prompt(i).tolist() for i in picked]
    domains = [held_out.domain_names[held_out.prompts.domain[i]] for i in picked]
    decoder = BatchDecoder(plain, prompts, spec.max_new_tokens, list(held_out.stop_ids))
    ar = decoder.ar()
    table: dict[str, Any] = {}
    for canvas_len in spec.canvas_lens:
        table[f"verify K={canvas_len}"] = by_domain(decoder.verify(weights, canvas_len), ar, domains)
    for threshold in spec.thresholds:
        name = f"confident {threshold:g} K={max(spec.canvas_lens)}"
        table[name] = by_domain(decoder.confident(weights, max(spec.canvas_lens), threshold), ar, domains)
    return table


def by_domain(decoded: Decoded, ar: Decoded, domains: list[str]) -> dict[str, dict[str, float]]:
    """Tokens per round, and the share of AR tokens before the first difference, per domain and overall."""
    same = [_shared_share(decoded.answer(i), ar.answer(i)) for i in range(len(domains))]
    result = {}
    for name in [*sorted(set(domains)), "all"]:
        rows = [i for i, domain in enumerate(domains) if name in (domain, "all")]
        tokens, rounds = decoded.num_tokens[rows].sum(), decoded.num_rounds[rows].sum()
        agreement = sum(same[i] for i in rows) / len(rows)
        result[name] = {"tokens_per_round": float(tokens / rounds.clamp(min=1)), "same_as_ar": agreement}
    return result


def _shared_share(a: list[int], b: list[int]) -> float:
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return shared / max(len(b), 1)


@torch.no_grad()
def held_out_loss(network: Network, store: RowStore, num_batches: int, head_chunk: int) -> float:
    """Mean answer loss of the AR rows, with the skill merged, over the first batches."""
    losses = []
    nothing = torch.empty(0, dtype=torch.long, device=network.device)
    for number in range(num_batches):
        batch = store.batch(number)
        x = network.embed(batch.token_ids)
        hidden = network.forward(x, batch.positions, DocumentAttention(batch.doc_id)).flatten(0, 1)
        target, weight = next_token_targets(batch, text_weight=0.0)
        rows = rows_with_loss(weight, head_chunk)
        losses.append(float(answer_loss(hidden[rows], network.head, target[rows], weight[rows], nothing, head_chunk)))
    return sum(losses) / len(losses)


def answers(
    network: Network, prompts: list[list[int]], max_new_tokens: int, stop_ids: tuple[int, ...]
) -> list[list[int]]:
    """Greedy AR answers, for inspection."""
    decoded = BatchDecoder(Network(network.model, as_written), prompts, max_new_tokens, list(stop_ids)).ar()
    return [decoded.answer(i) for i in range(len(prompts))]


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """The table as text, one line per decoder."""
    return [
        f"{decoder:22s} "
        + "  ".join(f"{d} {v['tokens_per_round']:.2f} ({v['same_as_ar']:.2f})" for d, v in row.items())
        for decoder, row in table.items()
    ]
