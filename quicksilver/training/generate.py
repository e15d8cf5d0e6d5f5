"""On-policy generation: the frozen base model answers prompts, autoregressively and thousands of sequences in lockstep.

The results are packed rows of training data, each with several documents (a prompt and its answer). A row of the batch
fills one of them: a prompt is fed token by token, its answer is sampled, then the next prompt starts in the next slot
with position 0 and an empty context. On CUDA one step is one graph.
"""

from __future__ import annotations

import lzma
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load, save
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.training.journal import Journal
from quicksilver.training.network import Network
from quicksilver.training.pack import PackedRows, join_rows
from quicksilver.training.recipe import Generate

# The number of slots that attention reads is rounded up to a multiple of this. Each multiple has a captured graph.
SLOT_STEP = 256


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Concatenated prompts: prompt i is token_ids[offsets[i] : offsets[i + 1]]."""

    token_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    # Turn ends to generate before a document is complete: 1 for an answer, 2 if the user turn is generated too.
    num_ends: npt.NDArray[np.int64]
    # Index into the domain names recorded by the prepare stage.
    domain: npt.NDArray[np.int64]

    @property
    def num_prompts(self) -> int:
        return len(self.offsets) - 1

    def prompt(self, index: int) -> npt.NDArray[np.int64]:
        return self.token_ids[self.offsets[index] : self.offsets[index + 1]]

    def save(self, path: Path) -> None:
        """Write one xz file with a safetensors body, in the smallest types that hold the ids."""
        is_small = int(self.token_ids.max(initial=0)) < 1 << 16
        arrays = {"offsets": self.offsets, "num_ends": self.num_ends, "domain": self.domain}
        small = {name: array.astype(np.uint32) for name, array in arrays.items()}
        small["token_ids"] = self.token_ids.astype(np.uint16 if is_small else np.uint32)
        path.write_bytes(lzma.compress(save(small), preset=1))

    @classmethod
    def load(cls, path: Path) -> PromptSet:
        arrays = load(lzma.decompress(path.read_bytes()))
        return cls(**{name: array.astype(np.int64) for name, array in arrays.items()})


def prompt_set(prompts: list[list[int]], domains: list[int], num_ends: list[int] | None = None) -> PromptSet:
    lengths = np.array([len(p) for p in prompts], dtype=np.int64)
    flat = np.concatenate([np.asarray(p, dtype=np.int64) for p in prompts])
    ends = np.asarray(num_ends or [1] * len(prompts), dtype=np.int64)
    offsets = np.concatenate([[0], lengths.cumsum()])
    return PromptSet(flat, offsets, ends, np.asarray(domains, dtype=np.int64))


class SlotCache:
    """Keys and values by (layer, row, slot). All batch rows write the same slot in the same step."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    @classmethod
    def zeros(cls, network: Network, batch: int, num_slots: int) -> SlotCache:
        config, dtype = network.config, network.head.dtype
        shape = (config.num_layers, batch, config.num_kv_heads, num_slots, config.head_dim)
        return cls(*(torch.zeros(shape, device=network.device, dtype=dtype) for _ in "kv"))

    def part(self, rows: slice) -> SlotCache:
        """A view of some batch rows."""
        return SlotCache(self.k[:, rows], self.v[:, rows])


class StepAttention:
    """One new token per row over the slots of its own document. Query heads of a group are stacked, so keys are not
    repeated."""

    def __init__(self, cache: SlotCache, slot: Tensor, doc_start: Tensor, num_slots: int) -> None:
        self._cache, self._slot, self._num_slots = cache, slot, num_slots
        index = torch.arange(num_slots, device=slot.device)
        is_visible = (index >= doc_start[:, None]) & (index <= slot)
        # The mask is additive and in the model dtype: a boolean mask would be converted in every layer.
        hidden = torch.zeros(is_visible.shape, device=slot.device, dtype=cache.k.dtype)
        self._bias = hidden.masked_fill_(~is_visible, float("-inf"))[:, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.k[layer], self._cache.v[layer]
        keys.index_copy_(2, self._slot, k)
        values.index_copy_(2, self._slot, v)
        stacked = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
        attn_mask = self._bias.expand(-1, stacked.shape[1], stacked.shape[2], -1)
        seen = (keys[:, :, : self._num_slots], values[:, :, : self._num_slots])
        return scaled_dot_product_attention(stacked, *seen, attn_mask=attn_mask).view_as(q)


def captured(step: Callable[[], None], states: list[Tensor]) -> Callable[[], Any]:
    """The step as one CUDA graph; elsewhere the step itself. `states` are what it changes, besides the cache."""
    if states[0].device.type != "cuda":
        return step
    kept = [state.clone() for state in states]
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for state, before in zip(states, kept, strict=True):
        state.copy_(before)
    return graph.replay


class Generator:
    """Fills packed rows. All state is on the device, and a round of `row_len` steps copies nothing back."""

    def __init__(self, network: Network, prompts: PromptSet, spec: Generate, stop_id: int) -> None:
        self.network, self.spec, self.stop_id = network, spec, stop_id
        device, batch = network.device, spec.batch
        order = np.roll(np.random.default_rng(spec.seed).permutation(prompts.num_prompts), -spec.skip)
        self._flat = torch.from_numpy(prompts.token_ids).to(device)
        self._begin = torch.from_numpy(prompts.offsets[:-1][order].copy()).to(device)
        self._end = torch.from_numpy(prompts.offsets[1:][order].copy()).to(device)
        self._num_ends = torch.from_numpy(prompts.num_ends[order].copy()).to(device)
        self._heat = torch.from_numpy(temperatures(self._num_ends.cpu().numpy(), spec)).to(device)
        self._cache = SlotCache.zeros(network, batch, spec.row_len)
        zeros = torch.zeros(batch, device=device, dtype=torch.long)
        self._token, self._prompt, self._at = (zeros.clone() for _ in range(3))
        self._doc_start, self._num_new, self._ends_left = (zeros.clone() for _ in range(3))
        self._slot, self._used = zeros[:1].clone(), zeros[:1].clone()
        self._rows = torch.zeros(batch, spec.row_len, device=device, dtype=torch.int32)
        self._is_start, self._is_new = (torch.zeros(batch, spec.row_len, device=device, dtype=torch.bool) for _ in "ab")
        self._steps: dict[int, Callable[[], Any]] = {}

    @property
    def prompts_used(self) -> int:
        return int(self._used)

    @torch.no_grad()
    def round(self) -> PackedRows:
        """One batch of packed rows, from slot 0 to the last."""
        for state in (self._slot, self._is_start, self._is_new):
            state.zero_()
        self._doc_start.zero_()
        self._start_documents(torch.ones_like(self._token, dtype=torch.bool), self._token)
        self._rows[:, 0], self._is_start[:, 0] = self._token.int(), True
        for slot in range(self.spec.row_len - 1):
            num_slots = min(-(-(slot + 1) // SLOT_STEP) * SLOT_STEP, self.spec.row_len)
            self._step_for(num_slots)()
        arrays = (self._rows, self._is_start, self._is_new)
        rows, is_start, is_new = (t.cpu().numpy() for t in arrays)
        is_small = self.network.config.vocab_size <= 1 << 16
        return PackedRows(rows.astype(np.uint16 if is_small else np.uint32), is_start, is_new, np.zeros_like(is_new))

    def _step_for(self, num_slots: int) -> Callable[[], Any]:
        if num_slots not in self._steps:
            self._steps[num_slots] = captured(lambda: self._step(num_slots), self._states())
        return self._steps[num_slots]

    def _states(self) -> list[Tensor]:
        states = [self._token, self._prompt, self._at, self._doc_start, self._num_new, self._ends_left, self._slot]
        return [*states, self._used, self._rows, self._is_start, self._is_new]

    def _step(self, num_slots: int) -> None:
        """Feed each row's token, choose its next one, and put it in the next slot."""
        chosen = self._choose(num_slots)
        is_forced = self._at < self._end[self._prompt]
        fed = self._flat[self._at.clamp(max=len(self._flat) - 1)]
        nxt = torch.where(is_forced, fed, chosen)
        # A document is over when its last token was fed: the token now in `_token` closed it.
        is_over = ~is_forced & (self._num_new > 0) & self._is_closed()
        self._slot += 1
        self._num_new += (~is_forced & ~is_over).long()
        self._ends_left -= (~is_forced & ~is_over & (nxt == self.stop_id)).long()
        self._at += (is_forced & ~is_over).long()
        self._start_documents(is_over, nxt)
        place = self._slot.expand(len(nxt), 1)
        self._rows.scatter_(1, place, self._token.int()[:, None])
        self._is_start.scatter_(1, place, is_over[:, None])
        self._is_new.scatter_(1, place, (~is_forced & ~is_over)[:, None])

    def _is_closed(self) -> Tensor:
        return (self._ends_left <= 0) | (self._num_new >= self.spec.max_new_tokens)

    def _choose(self, num_slots: int) -> Tensor:
        attention = StepAttention(self._cache, self._slot, self._doc_start, num_slots)
        positions = (self._slot - self._doc_start)[:, None]
        hidden = self.network.forward(self.network.embed(self._token[:, None]), positions, attention)
        logits = (hidden[:, 0] @ self.network.head.T).float()
        noise = torch.empty_like(logits).exponential_().log_().neg_()
        return (logits + self._heat[self._prompt][:, None] * noise).argmax(-1)

    def _start_documents(self, is_over: Tensor, otherwise: Tensor) -> None:
        """Where `is_over`, the next prompt's first token comes next; elsewhere `otherwise` does."""
        number = self._used + is_over.long().cumsum(0) - 1
        prompt = number % len(self._begin)
        self._prompt.copy_(torch.where(is_over, prompt, self._prompt))
        self._at.copy_(torch.where(is_over, self._begin[prompt] + 1, self._at))
        self._ends_left.copy_(torch.where(is_over, self._num_ends[prompt], self._ends_left))
        self._num_new.copy_(torch.where(is_over, 0, self._num_new))
        self._doc_start.copy_(torch.where(is_over, self._slot, self._doc_start))
        self._token.copy_(torch.where(is_over, self._flat[self._begin[prompt]], otherwise))
        self._used += is_over.sum()


def temperatures(num_ends: npt.NDArray[np.int64], spec: Generate) -> npt.NDArray[np.float32]:
    """By prompt. A share is decoded greedily. Prompts without a user turn are equal, so they get a higher one."""
    share = np.arange(len(num_ends)) % 100 < round(spec.greedy_share * 100)
    usual = np.where(share, 0.0, spec.temperature)
    return np.where(num_ends > 1, spec.self_play_temperature, usual).astype(np.float32)


def generated_rows(generator: Generator, journal: Journal) -> PackedRows:
    """All rounds of a generator, with its pace in the journal."""
    made: list[PackedRows] = []
    started = time.monotonic()
    for number, rows in enumerate(rounds(generator, generator.spec), 1):
        made.append(rows)
        rate = rows.token_ids.size / (time.monotonic() - started)
        started = time.monotonic()
        share = float(rows.is_answer.mean())
        journal.report(number, {"tokens": rows.token_ids.size, "tokens_per_s": rate, "generated": share})
    journal.print_line(
        f"{sum(r.token_ids.size for r in made) / 1e6:.1f} M tokens, {generator.prompts_used} prompts used"
    )
    return join_rows(made)


def rounds(generator: Generator, spec: Generate) -> Iterator[PackedRows]:
    """Rounds until the next one would pass `max_seconds`, at least one."""
    began, count = time.monotonic(), 0
    while True:
        started = time.monotonic()
        yield generator.round()
        count += 1
        now = time.monotonic()
        if count == spec.max_rounds or now - began + (now - started) > spec.max_seconds:
            return
