"""A verify round as one CUDA graph: draft, verify, acceptance, and the rows of the next round.

A canvas of one token is plain autoregression: one forward per round. A longer canvas has a draft forward and a verify
forward. The verify forward may hold a draft tree (`trees.py`), which has several candidate tokens per position.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.backends.cuda.adapter_buffers import send_tiles
from quicksilver.backends.cuda.buffers import StreamMarker, copy_to_host
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape
from quicksilver.backends.cuda.kernels.adapter_rows import AdapterTiles
from quicksilver.backends.cuda.kernels.head import NUM_NEXT
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.backends.cuda.round_forward import RoundForward
from quicksilver.backends.cuda.round_kernels import RoundState, accept_verified, store_draft, write_rows
from quicksilver.backends.cuda.trees import accept_tree, copy_accepted_kv, write_chain, write_tree
from quicksilver.diffusion.verify import WINDOW

# Cached tokens that rounds are timed with.
TIMED_CONTEXT = 512


class RoundGraph:
    """Buffers and graphs of one shape. `launch` queues a round and returns where its proposals will be."""

    def __init__(self, executor: GraphExecutor, shape: RoundShape) -> None:
        self.executor, self.shape, device = executor, shape, executor.device
        max_pages = executor.pages.shape[1]
        self.state = RoundState.allocate(shape, max_pages * executor.cache.page_size, device, max_pages)
        self.host_state = self.state.host_copy(shape)
        self.host_arrays = self.host_state.arrays()
        # Per sequence: its text on the device, and the pinned copy.
        self.texts = list(zip(self.state.text, self.host_state.text, strict=True))
        self.pages, tables = self.state.pages, (self.host_state.pages, self.state.pages)
        verify = RoundForward(executor, shape, tables)
        # Draft and verify. They share buffers unless the verify forward holds a tree.
        self.forwards = [verify, verify]
        self.runners_up = self.raw = torch.zeros(0, dtype=torch.int32, device=device)
        if shape.tree_rows:
            assert executor.cache.num_scratch >= shape.num_verify, "tree rows write to scratch slots"
            self.forwards = [RoundForward(executor, shape.draft, tables), verify]
            self.runners_up = self.runners_up.new_zeros(2 * NUM_NEXT, self.forwards[0].num_heads)
            self.raw = self.raw.new_zeros(4, verify.num_heads)
        self.sent = StreamMarker(device)
        self._flat = torch.zeros(4 * len(self.forwards) * self.forwards[0].num_heads, dtype=torch.int32, device=device)
        self.results = self._by_forward(self._flat)
        # Of the rows of the draft and of the verify forward; empty without memory for adapters.
        self.adapters = [executor.adapters.new_rows(one.num_rows) for one in self.forwards] if executor.adapters else []
        self._replays: dict[tuple[SamplingOptions, bool, bool], Callable[[], None]] = {}

    @property
    def num_rows(self) -> int:
        """Rows of the verify forward."""
        return self.forwards[-1].num_rows

    def _by_forward(self, flat: Tensor) -> list[Tensor]:
        return list(flat.view(len(self.forwards), 4, -1))

    def launch(
        self, options: SamplingOptions, has_draft: bool = False, has_adapters: bool = False
    ) -> tuple[list[Tensor], Callable[[], None]]:
        """Queue a round -> its results on the host, per forward, and a call that waits for them. With `has_draft` only
        the verify forward runs."""
        self.prepare(options, has_draft, has_adapters)()
        host, arrived = copy_to_host(self._flat)
        return self._by_forward(host), arrived.wait

    def prepare(
        self, options: SamplingOptions, has_draft: bool = False, has_adapters: bool = False
    ) -> Callable[[], None]:
        """The replay of this variant, captured at first use."""
        key = (options, has_draft and self.shape.has_two_forwards, has_adapters)
        if key not in self._replays:
            assert bool((self.state.position < 0).all()), "a round graph is captured while it holds no sequence"
            self._replays[key] = capture(lambda: self._round(*key), self.executor.device, self.executor.pool)
        return self._replays[key]

    def time(self) -> float:
        """Milliseconds of a round after TIMED_CONTEXT tokens, or as many as the cache holds. Writes into the first
        pages."""
        pages, cache = self.pages, self.executor.cache
        num_pages = min(pages.shape[1], cache.num_paged // cache.page_size)
        pages.copy_(torch.arange(pages.shape[1]).clamp(max=num_pages - 1)[None])
        self.state.last.fill_(0)
        longest = num_pages * cache.page_size - 8 * (self.shape.canvas_len + 1)
        self.state.position.fill_(max(min(TIMED_CONTEXT, longest), -1))
        ms = time_replay(self.prepare(SamplingOptions()))
        self.state.buffer.fill_(-1)
        return ms

    def load(self, works: Seq[Work], options: SamplingOptions) -> None:
        """Copy the state of the sequences to the device. Later changes are made by the device alone. Waits only for
        earlier copies out of the same host buffers."""
        self.sent.wait()
        host, forwards = self.host_arrays, dict.fromkeys(self.forwards)
        host.buffer[:] = -1
        for b, work in enumerate(works):
            self._load_sequence(b, work)
            for forward in forwards:
                forward.write_params(b, work.sequence.request.params, options)
        self.state.buffer.copy_(self.host_state.buffer, non_blocking=True)
        for forward in forwards:
            forward.head.send_params(options)
        if any(work.sequence.adapter is not None for work in works):
            self._send_adapters(works)
        self.sent.record()

    def _send_adapters(self, works: Seq[Work]) -> None:
        """In the draft forward all rows of a sequence but the first are canvas rows."""
        buffers, canvas_len = self.executor.adapters, self.shape.canvas_len
        assert buffers is not None
        slots = [np.full(rows.num_rows, -1, dtype=np.int32) for rows in self.adapters]
        for b, adapter in enumerate(work.sequence.adapter for work in works):
            if adapter is not None:
                first = b * canvas_len
                slots[0][first] = slots[1][self.shape.rows_of(b)] = buffers.table.slot_of(adapter)
                slots[0][first + 1 : first + canvas_len] = buffers.table.slot_of(adapter.canvas or adapter)
        for rows, own in zip(self.adapters, slots, strict=True):
            send_tiles(rows, own)

    def _load_sequence(self, b: int, work: Work) -> None:
        host = self.host_arrays
        tokens, draft = work.sequence.tokens, work.tail.token_ids if work.tail and work.tail.is_causal else ()
        host.last[b], host.position[b] = tokens[work.end - 1], work.end - 1
        host.draft[b, : len(draft)] = draft
        if self.shape.tree_rows:
            write_chain(host.tree[b], [tokens[work.end - 1], *draft])
        pages = work.sequence.pages[: host.pages.shape[1]]
        host.pages[b, : len(pages)] = pages
        window = slice(max(work.end - WINDOW, 0), work.end)
        host.text[b, window] = tokens[window]
        device, pinned = self.texts[b]
        device[window].copy_(pinned[window], non_blocking=True)

    def send_pages(self, rounds: InFlightRounds) -> None:
        """Copy page tables that have grown. They only grow while rounds are in flight, so a copy that is still queued
        can only deliver entries early."""
        table = self.host_arrays.pages
        for sequence, b in rounds.index.items():
            count = min(len(sequence.pages), table.shape[1])
            if table[b, count - 1] != sequence.pages[count - 1]:
                table[b, :count] = sequence.pages[:count]
                self.pages[b, :count].copy_(self.host_state.pages[b, :count], non_blocking=True)
                self.sent.record()

    def clear(self) -> None:
        """Mark all sequences as unused."""
        self.state.position.fill_(-1)

    def _round(self, options: SamplingOptions, has_draft: bool, has_adapters: bool) -> None:
        has_tree, adapters = self.shape.tree_rows > 0, self.adapters if has_adapters else [None, None]
        if not has_draft:
            self._write_rows(self.forwards[0], is_draft=True)
            runners_up = self.runners_up if has_tree else None
            self.forwards[0].run(self.shape.canvas_len > 1, options, self.results[0], runners_up, adapters[0])
            store_draft(self.state, self.results[0], runners_up)
        if has_tree:
            self._verify_tree(options, adapters[1], builds=not has_draft)
        elif self.shape.has_two_forwards:
            self._write_rows(self.forwards[1], is_draft=False)
            self.forwards[1].run(False, options, self.results[1], adapters=adapters[1])
            accept_verified(self.state, self.results[1])

    def _verify_tree(self, options: SamplingOptions, adapters: AdapterTiles | None, builds: bool) -> None:
        forward, cache = self.forwards[1], self.executor.cache
        tables = forward.rows.inputs.tables
        write_tree(self.state, forward.rows.device, forward.head.ints[1], tables, cache.num_paged, builds)
        forward.run(False, options, self.raw, adapters=adapters)
        accept_tree(self.state, self.raw, self.results[1], self.results[0][0])
        copy_accepted_kv(self.state, tables, cache)

    def _write_rows(self, forward: RoundForward, is_draft: bool) -> None:
        page_size = self.executor.cache.page_size
        write_rows(self.state, forward.rows.device, forward.head.ints[1], self.pages, page_size, is_draft)
