"""Batched decoding for held-out measurements: plain AR, draft and verify, and confidence thresholds.

A static cache with one sequence per batch row, where slot equals position. All sequences of a batch advance together;
finished ones idle. Serving uses `engine`. A measurement does not (decision 0063): it decodes hundreds of sequences with
weights that change in training, and counts the tokens of the canvas alone, without drafts from prompt lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.training.generate import SlotCache
from quicksilver.training.network import Lora, Network


@dataclass(frozen=True, slots=True)
class CanvasWeights:
    """A canvas adapter in the tensor layout of training."""

    lora: Lora
    masks: Tensor


@dataclass(frozen=True, slots=True)
class Decoded:
    """(sequences,) counts and (sequences, slots) ids; `num_tokens` are the new ones."""

    token_ids: Tensor
    prompt_len: Tensor
    num_tokens: Tensor
    num_rounds: Tensor

    def answer(self, index: int) -> list[int]:
        begin = int(self.prompt_len[index])
        ids: list[int] = self.token_ids[index, begin : begin + int(self.num_tokens[index])].tolist()
        return ids


class PlacedAttention:
    """Rows at given positions of each sequence. They write their slots and attend to slots up to `last_seen`."""

    def __init__(self, cache: SlotCache, positions: Tensor, last_seen: Tensor) -> None:
        self._cache, self._positions = cache, positions
        self._row = torch.arange(positions.shape[0], device=positions.device)[:, None]
        num_slots = cache.k.shape[3]
        index = torch.arange(num_slots, device=positions.device)
        self._visible = (index <= last_seen[..., None])[:, None]  # (sequences, 1, rows, slots)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.k[layer], self._cache.v[layer]
        keys[self._row, :, self._positions] = k.transpose(1, 2)
        values[self._row, :, self._positions] = v.transpose(1, 2)
        has_groups = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, keys, values, attn_mask=self._visible, enable_gqa=has_groups)


class BatchDecoder:
    """Decodes a batch of prompts greedily, up to `max_new_tokens` or a stop token."""

    def __init__(self, network: Network, prompts: list[list[int]], max_new_tokens: int, stop_ids: list[int]) -> None:
        self.network, self._max_new, device = network, max_new_tokens, network.device
        self._stop_ids = torch.tensor(stop_ids, device=device)
        self._prompt_len = torch.tensor([len(p) for p in prompts], device=device)
        # Extra slots after the longest answer, because a canvas may extend beyond the end.
        self._num_slots = max(map(len, prompts)) + max_new_tokens + 40
        self._prompts = torch.zeros(len(prompts), self._num_slots, dtype=torch.long, device=device)
        for row, prompt in enumerate(prompts):
            self._prompts[row, : len(prompt)] = torch.tensor(prompt, device=device)
        self._cache = SlotCache.zeros(network, len(prompts), self._num_slots)

    @torch.no_grad()
    def ar(self) -> Decoded:
        return self._run(lambda token, at: (self._causal(token[:, None], at[:, None]), torch.ones_like(at)))

    @torch.no_grad()
    def verify(self, weights: CanvasWeights, canvas_len: int) -> Decoded:
        """A round drafts `canvas_len` tokens and commits those that equal the AR tokens, plus the next AR token."""

        def propose(token: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
            drafted, _ = self._draft(weights, token, at, canvas_len)
            positions = at[:, None] + 1 + torch.arange(canvas_len, device=at.device)
            wanted = self._causal(drafted, positions)
            num_right = (wanted[:, :-1] == drafted[:, 1:]).long().cumprod(1).sum(1)
            # Draft token 0 is the AR token. Then come the matching tokens, then the AR token after them.
            tokens = torch.cat((drafted[:, :1], wanted), dim=1)
            return tokens, num_right + 2

        return self._run(propose)

    @torch.no_grad()
    def confident(self, weights: CanvasWeights, canvas_len: int, threshold: float) -> Decoded:
        """A forward commits the AR token and the following drafted tokens while each exceeds `threshold`."""

        def propose(token: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
            drafted, sureness = self._draft(weights, token, at, canvas_len)
            num_sure = (sureness >= threshold).long().cumprod(1).sum(1)
            # The engine writes these keys in the causal rows of its next forward. Here they need a forward, which is
            # not counted.
            self._causal(drafted, at[:, None] + 1 + torch.arange(canvas_len, device=at.device))
            return drafted, num_sure + 1

        return self._run(propose)

    def _draft(self, weights: CanvasWeights, token: Tensor, at: Tensor, canvas_len: int) -> tuple[Tensor, Tensor]:
        """(sequences, canvas_len) tokens, the first from the causal row, and the confidence of the others."""
        first = self._causal(token[:, None], at[:, None])
        index = torch.arange(canvas_len - 1, device=at.device)
        positions = at[:, None] + 1 + index
        last_seen = (at + canvas_len - 1)[:, None].expand_as(positions)
        masks = weights.masks[: canvas_len - 1].to(self.network.head.dtype)
        x = masks.expand(len(at), -1, -1)
        attention = PlacedAttention(self._cache, positions, last_seen)
        hidden = self.network.forward(x, positions, attention, weights.lora)
        drafted, sureness = likeliest(hidden, self.network.head)
        return torch.cat((first, drafted), dim=1), sureness

    def _causal(self, tokens: Tensor, positions: Tensor) -> Tensor:
        attention = PlacedAttention(self._cache, positions, positions)
        hidden = self.network.forward(self.network.embed(tokens), positions, attention)
        return likeliest(hidden, self.network.head)[0]

    def _prefill(self, chunk_rows: int = 32) -> None:
        length = int(self._prompt_len.max())
        positions = torch.arange(length, device=self.network.device)
        for start in range(0, len(self._prompts), chunk_rows):
            rows = slice(start, start + chunk_rows)
            tokens = self._prompts[rows, :length]
            placed = positions.expand_as(tokens)
            attention = PlacedAttention(self._cache.part(rows), placed, placed)
            self.network.forward(self.network.embed(tokens), placed, attention)

    def _run(self, propose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Decoded:
        self._prefill()
        ids, at = self._prompts.clone(), self._prompt_len - 1
        limit = at + self._max_new
        is_done = torch.zeros_like(at, dtype=torch.bool)
        num_rounds = torch.zeros_like(at)
        while not bool(is_done.all()):
            token = ids.gather(1, at[:, None])[:, 0]
            tokens, num_good = propose(token, at)
            num_good = self._cut(tokens, num_good, limit - at) * ~is_done
            index = torch.arange(tokens.shape[1], device=at.device)
            place = (at[:, None] + 1 + index).clamp(max=self._num_slots - 1)
            ids.scatter_(1, place, torch.where(index < num_good[:, None], tokens, ids.gather(1, place)))
            num_rounds += ~is_done
            at = at + num_good
            last = ids.gather(1, at[:, None])
            is_done = is_done | (at >= limit) | (last == self._stop_ids).any(1)
        return Decoded(ids, self._prompt_len, at - (self._prompt_len - 1), num_rounds)

    def _cut(self, tokens: Tensor, num_good: Tensor, room: Tensor) -> Tensor:
        """Truncate at a stop token and at the length limit."""
        index = torch.arange(tokens.shape[1], device=tokens.device)
        stops = (tokens[..., None] == self._stop_ids).any(-1) & (index < num_good[:, None])
        until_stop = torch.where(stops.any(1), stops.long().argmax(1) + 1, num_good)
        return torch.minimum(until_stop, room)


def likeliest(hidden: Tensor, head: Tensor, chunk_rows: int = 4096) -> tuple[Tensor, Tensor]:
    """Argmax from fp32 logits and its probability, shaped as `hidden` without its last dimension."""
    tokens, sureness = [], []
    for rows in hidden.flatten(0, -2).split(chunk_rows):
        logits = (rows @ head.T).float()
        best = logits.max(-1)
        tokens.append(best.indices)
        sureness.append((best.values - logits.logsumexp(-1)).exp())
    shape = hidden.shape[:-1]
    return torch.cat(tokens).view(shape), torch.cat(sureness).view(shape)
