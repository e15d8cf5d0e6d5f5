"""Greedy answers to many prompts at once, for proposed next edits (`proposals.py`) and for measurements.

Prompts of similar length share a batch. They are read in large forwards and lie right-aligned in the cache, so that all
sequences write the same slot in a step. On CUDA one step is one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.training.generate import SLOT_STEP, SlotCache, StepAttention, captured
from quicksilver.training.network import Network, as_written

# Steps between two looks at whether every sequence has ended: a look waits for the device.
_LOOK_EVERY = 16
_PREFILL_TOKENS = 32768


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and the number of tokens that its answer may have."""

    prompt: Sequence[int]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with its stop token, if it reached one, and the log-probability of all its tokens."""

    token_ids: list[int]
    log_prob: float


class PrefillAttention:
    """Causal attention over prompts padded on the right. Keys and values go right-aligned into the cache."""

    def __init__(self, cache: SlotCache, rows: slice, lengths: Tensor, end_slot: int) -> None:
        self._cache, self._rows, self._end = cache, rows, end_slot
        index = torch.arange(end_slot, device=lengths.device)
        self._source = (index - (end_slot - lengths[:, None])).clamp(min=0)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        source = self._source[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        self._cache.k[layer][self._rows, :, : self._end] = k.gather(2, source)
        self._cache.v[layer][self._rows, :, : self._end] = v.gather(2, source)
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class AnswerDecoder:
    """Decodes up to `batch` prompts at a time; a prompt and its answer have `num_slots` slots together."""

    def __init__(self, network: Network, batch: int, num_slots: int, stop_ids: Sequence[int]) -> None:
        self.network, self.batch, self.num_slots = network, batch, num_slots
        self._reader = Network(network.model, as_written)
        device = network.device
        self._stop_ids = torch.tensor(list(stop_ids), device=device)
        self._cache = SlotCache.zeros(network, batch, num_slots)
        zeros = torch.zeros(batch, device=device, dtype=torch.long)
        self._token, self._doc_start, self._room, self._num_new = (zeros.clone() for _ in range(4))
        self._slot = zeros[:1].clone()
        self._is_done = torch.zeros(batch, device=device, dtype=torch.bool)
        self._log_prob = torch.zeros(batch, device=device)
        self._rows = torch.zeros(batch, num_slots, device=device, dtype=torch.long)
        self._steps: dict[int, Callable[[], Any]] = {}

    @torch.no_grad()
    def answers(self, asked: Sequence[Asked]) -> list[Answered]:
        """Answers in the order of the prompts. A prompt that leaves no slot for an answer is answered with nothing."""
        found: dict[int, Answered] = {}
        for picked in self._batches(asked):
            found |= dict(zip(picked, self._decode([asked[i] for i in picked]), strict=True))
        return [found.get(i, Answered([], 0.0)) for i in range(len(asked))]

    def _batches(self, asked: Sequence[Asked]) -> Iterator[list[int]]:
        fitting = [i for i, ask in enumerate(asked) if 0 < len(ask.prompt) < self.num_slots]
        fitting.sort(key=lambda i: (asked[i].max_new_tokens, len(asked[i].prompt)))
        for start in range(0, len(fitting), self.batch):
            yield fitting[start : start + self.batch]

    def _decode(self, asked: Sequence[Asked]) -> Iterator[Answered]:
        end = max(len(ask.prompt) for ask in asked) - 1
        self._begin(asked, end)
        self._read([ask.prompt for ask in asked], end)
        most = min(max(ask.max_new_tokens for ask in asked), self.num_slots - end)
        for number in range(most):
            if number % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(self._is_done.all()):
                break
            self._step_for(min(-(-(end + number + 1) // SLOT_STEP) * SLOT_STEP, self.num_slots))()
        num_new, log_probs = self._num_new.tolist(), self._log_prob.tolist()
        ids = self._rows[:, end : end + most].tolist()
        for row in range(len(asked)):
            yield Answered(ids[row][: num_new[row]], log_probs[row])

    def _begin(self, asked: Sequence[Asked], end: int) -> None:
        device, idle = self.network.device, self.batch - len(asked)
        last = [ask.prompt[-1] for ask in asked] + [0] * idle
        starts = [end - len(ask.prompt) + 1 for ask in asked] + [end] * idle
        room = [min(ask.max_new_tokens, self.num_slots - end) for ask in asked] + [0] * idle
        for state, values in ((self._token, last), (self._doc_start, starts), (self._room, room)):
            state.copy_(torch.tensor(values, device=device))
        self._slot.fill_(end)
        for state in (self._num_new, self._log_prob):
            state.zero_()
        self._is_done.copy_(self._room <= 0)

    def _read(self, prompts: Sequence[Sequence[int]], end: int) -> None:
        """Keys and values of every prompt token but the last."""
        device, start = self.network.device, 0
        while start < len(prompts):
            longest = max(len(prompts[start]) - 1, 1)
            count = 1
            while start + count < len(prompts):
                longer = max(longest, len(prompts[start + count]) - 1)
                if longer * (count + 1) > _PREFILL_TOKENS:
                    break
                longest, count = longer, count + 1
            part = prompts[start : start + count]
            tokens = torch.zeros(count, longest, dtype=torch.long)
            for row, prompt in enumerate(part):
                tokens[row, : len(prompt) - 1] = torch.tensor(prompt[:-1])
            tokens = tokens.to(device)
            lengths = torch.tensor([len(prompt) - 1 for prompt in part], device=device)
            attention = PrefillAttention(self._cache, slice(start, start + count), lengths, end)
            positions = torch.arange(longest, device=device).expand(count, -1)
            if end:
                self._reader.forward(self._reader.embed(tokens), positions, attention)
            start += count

    def _step_for(self, num_slots: int) -> Callable[[], Any]:
        if num_slots not in self._steps:
            self._steps[num_slots] = captured(lambda: self._step(num_slots), self._states())
        return self._steps[num_slots]

    def _states(self) -> list[Tensor]:
        return [self._token, self._num_new, self._slot, self._is_done, self._log_prob, self._rows]

    def _step(self, num_slots: int) -> None:
        """Feed each sequence's last token and append the likeliest next one."""
        attention = StepAttention(self._cache, self._slot, self._doc_start, num_slots)
        positions = (self._slot - self._doc_start)[:, None]
        hidden = self.network.forward(self.network.embed(self._token[:, None]), positions, attention)
        logits = (hidden[:, 0] @ self.network.head.T).float()
        best = logits.max(-1)
        is_new = ~self._is_done
        self._rows.index_copy_(1, self._slot, best.indices[:, None])
        self._log_prob += (best.values - logits.logsumexp(-1)) * is_new
        self._num_new += is_new
        self._token.copy_(best.indices)
        is_stop = (best.indices[:, None] == self._stop_ids).any(1)
        self._is_done.logical_or_(is_stop | (self._num_new >= self._room))
        # The last slot is written again by sequences that have ended.
        self._slot.copy_((self._slot + 1).clamp(max=self.num_slots - 1))
