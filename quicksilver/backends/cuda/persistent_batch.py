"""The persistent batch on a GPU: 16 to 512 slots for one sequence each. A round is one graph: a token for every slot.

Last token, position and page table of every slot are parts of one device buffer that graphs of all sizes share. What
changes between two rounds (sequences that join or leave, new pages) is sent as one list of (index, value) pairs. Graphs
are replayed in the order in which they were queued, so a slot that was emptied is not written by later rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from quicksilver.backends.base import RoundTokens, Sequence
from quicksilver.backends.cuda.adapter_buffers import send_tiles
from quicksilver.backends.cuda.buffers import SMALLEST_BUCKET, StreamMarker, bucket_of
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.logit_bias import ADAPTER_OPTIONS, UNMASKED_OPTIONS, SamplingOptions, fits_fused_head
from quicksilver.backends.cuda.round_forward import RoundForward
from quicksilver.backends.cuda.round_kernels import RoundState, store_draft, write_rows
from quicksilver.backends.progress import counted
from quicksilver.backends.round_cost import TimedRound

# Rounds whose results may be unread: the host continues while the rounds that it queued run.
MAX_QUEUED = 4
# Cached tokens that rounds are timed with.
TIMED_CONTEXT = 256


class SlotState:
    """Last token, position and page table of every slot on the device; -1 is unset. The host collects changes and sends
    them together."""

    def __init__(self, num_slots: int, max_pages: int, device: torch.device) -> None:
        self.num_slots, self.max_pages = num_slots, max_pages
        self.buffer = torch.full((num_slots * (2 + max_pages),), -1, dtype=torch.int32, device=device)
        self.last, self.position = self.buffer[:num_slots], self.buffer[num_slots : 2 * num_slots]
        self.pages = self.buffer[2 * num_slots :].view(num_slots, max_pages)
        self._changes: dict[int, tuple[int, int]] = {}  # slot -> last token and position
        self._new_pages: list[tuple[int, int, list[int]]] = []  # slot, first index, pages

    def set(self, slot: int, last: int, position: int) -> None:
        self._changes[slot] = (last, position)

    def set_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """Only entries of pages that the slot did not have before: those of one slot never overlap between two sends,
        except after it was emptied."""
        self._new_pages.append((slot, first, pages[: self.max_pages - first]))

    def forget_pages(self, slot: int) -> None:
        self._new_pages = [one for one in self._new_pages if one[0] != slot]

    def send(self) -> None:
        """Queue the changes since the last call."""
        if not self._changes and not self._new_pages:
            return
        index, values = self._pairs()
        is_cuda = self.buffer.is_cuda
        host = [torch.from_numpy(array) for array in (index, values)]
        where, what = (t.pin_memory().to(self.buffer.device, non_blocking=True) if is_cuda else t for t in host)
        self.buffer.index_copy_(0, where, what)
        self._changes.clear()
        self._new_pages.clear()

    def _pairs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        slots = np.fromiter(self._changes, np.int64, len(self._changes))
        pairs = np.array(list(self._changes.values()), dtype=np.int32).reshape(-1, 2)
        starts = [2 * self.num_slots + slot * self.max_pages + first for slot, first, _ in self._new_pages]
        index = [slots, slots + self.num_slots]
        index += [np.arange(a, a + len(one[2])) for a, one in zip(starts, self._new_pages, strict=True)]
        pages = [np.array(one[2], dtype=np.int32) for one in self._new_pages]
        return np.concatenate(index), np.concatenate([pairs[:, 0], pairs[:, 1], *pages])


class SlotGraph:
    """The round of the first `num_slots` slots."""

    def __init__(self, executor: GraphExecutor, state: SlotState, num_slots: int) -> None:
        self.executor, self.num_slots = executor, num_slots
        device = executor.device
        nothing = torch.zeros(num_slots, 1, dtype=torch.int32, device=device)
        self.pages = state.pages[:num_slots]
        self.state = RoundState(
            state.buffer, state.last[:num_slots], state.position[:num_slots], nothing, nothing[:, :0, None], self.pages,
            nothing.view(-1, 1, 1, 1)[..., :0].expand(-1, 2, -1, -1), nothing, nothing,
        )  # fmt: skip
        host_pages = torch.zeros(0, dtype=torch.int32)
        self.forward = RoundForward(executor, RoundShape(num_slots, 1), (host_pages, self.pages), is_batch=True)
        self.results = torch.zeros(4, self.forward.num_heads, dtype=torch.int32, device=device)
        self.adapters = executor.adapters.new_rows(num_slots) if executor.adapters is not None else None
        self._replays: dict[tuple[SamplingOptions, bool], Callable[[], None]] = {}

    def prepare(self, options: SamplingOptions, has_adapters: bool = False) -> Callable[[], None]:
        """The replay of these options. Captured while all slots are empty: a capture runs the round."""
        key = (options, has_adapters)
        if key not in self._replays:
            self._replays[key] = capture(partial(self._round, *key), self.executor.device, self.executor.pool)
        return self._replays[key]

    def _round(self, options: SamplingOptions, has_adapters: bool) -> None:
        rows, head = self.forward.rows, self.forward.head
        write_rows(self.state, rows.device, head.ints[1], self.pages, self.executor.cache.page_size, is_draft=True)
        self.forward.run(False, options, self.results, adapters=self.adapters if has_adapters else None)
        store_draft(self.state, self.results)


class CudaPersistentBatch:
    def __init__(self, executor: GraphExecutor, num_slots: int) -> None:
        self.before_wait: Callable[[], None] = lambda: None
        self.executor, self.num_slots = executor, bucket_of(num_slots)
        self.slots = SlotState(self.num_slots, executor.pages.shape[1], executor.device)
        self.graphs: dict[int, SlotGraph] = {}
        self._sequences: dict[int, Sequence] = {}
        # By slot: the place of its adapter in the table, -1 for none; and the size of the graph that has these.
        self._adapters = np.full(self.num_slots, -1, dtype=np.int32)
        self._adapters_sent_for = 0
        self._unwritten: set[int] = set()  # slots whose sampling parameters the current graph does not hold
        self._written_for: tuple[int, SamplingOptions] | None = None
        self._sent = StreamMarker(executor.device)
        # Results on the host, in turn: each is read before its turn comes again.
        is_pinned = executor.device.type == "cuda"
        self._hosts = [
            torch.zeros(4 * self.num_slots, dtype=torch.int32, pin_memory=is_pinned) for _ in range(MAX_QUEUED)
        ]
        self._markers = [StreamMarker(executor.device) for _ in range(MAX_QUEUED)]
        self._turn = 0
        # Index of the marker, results on the host, and slots.
        self._queued: deque[tuple[int, npt.NDArray[np.int32], int]] = deque()

    def prepare(self) -> None:
        """Capture the graphs of all sizes. No slot may be occupied."""
        sizes = [self.num_slots]
        while sizes[-1] // 2 >= SMALLEST_BUCKET:
            sizes.append(sizes[-1] // 2)
        variants = [(size, options, False) for size, options in product(sizes, UNMASKED_OPTIONS)]
        if self.executor.adapters is not None:
            variants += [(size, ADAPTER_OPTIONS, True) for size in sizes]
        for size, options, has_adapters in counted("preparing slots", variants):
            self.graph(size).prepare(options, has_adapters)

    def measure(self) -> tuple[TimedRound, ...]:
        """The time of a round by size, with every slot after `TIMED_CONTEXT` tokens. Writes into the first pages."""
        cache = self.executor.cache
        last_page = cache.num_paged // cache.page_size - 1
        self.slots.pages.copy_((torch.arange(self.slots.pages.numel()) % (last_page + 1)).view_as(self.slots.pages))
        timed = []
        for size, graph in sorted(self.graphs.items()):
            self.slots.last.fill_(0)
            self.slots.position.fill_(min(TIMED_CONTEXT, self.slots.pages.shape[1] * cache.page_size // 2))
            timed.append(TimedRound(size, 1, time_replay(graph.prepare(SamplingOptions()))))
        self.slots.buffer.fill_(-1)
        return tuple(timed)

    def graph(self, num_slots: int) -> SlotGraph:
        if num_slots not in self.graphs:
            self.graphs[num_slots] = SlotGraph(self.executor, self.slots, num_slots)
        return self.graphs[num_slots]

    def accepts(self, sequence: Sequence) -> bool:
        return fits_fused_head(sequence)

    def join(self, slot: int, sequence: Sequence) -> None:
        self._sequences[slot] = sequence
        self._unwritten.add(slot)
        self.slots.set(slot, sequence.tokens[-1], len(sequence.tokens) - 1)
        self.slots.forget_pages(slot)
        self.slots.set_pages(slot, 0, sequence.pages)
        if self.executor.adapters is not None:
            self._set_adapter(slot, self.executor.adapters.table.slot_of(sequence.adapter))

    def leave(self, slot: int) -> None:
        del self._sequences[slot]
        self.slots.set(slot, -1, -1)
        self._set_adapter(slot, -1)

    def _set_adapter(self, slot: int, place: int) -> None:
        if self._adapters[slot] != place:
            self._adapters[slot], self._adapters_sent_for = place, 0

    def extend_pages(self, slot: int, first: int, pages: list[int]) -> None:
        self.slots.set_pages(slot, first, pages)

    def launch(self, num_slots: int) -> None:
        graph = self.graph(bucket_of(num_slots))
        has_adapters = bool((self._adapters >= 0).any())
        options = ADAPTER_OPTIONS if has_adapters else self._options()
        self._write_params(graph, options)
        self.slots.send()
        if graph.adapters is not None and has_adapters and self._adapters_sent_for != graph.num_slots:
            send_tiles(graph.adapters, self._adapters[: graph.num_slots])
            self._adapters_sent_for = graph.num_slots
        graph.prepare(options, has_adapters)()
        host = self._hosts[self._turn][: graph.results.numel()].view_as(graph.results)
        host.copy_(graph.results, non_blocking=True)
        self._markers[self._turn].record()
        self._queued.append((self._turn, host.numpy(), num_slots))
        self._turn = (self._turn + 1) % MAX_QUEUED

    def wait(self) -> RoundTokens:
        turn, results, num_slots = self._queued.popleft()
        self._markers[turn].wait()
        return RoundTokens(results[0, :num_slots, None], np.ones(num_slots, np.int64), results[3, :num_slots] != 0)

    def discard_rounds(self) -> None:
        self._queued.clear()

    def _options(self) -> SamplingOptions:
        params = [sequence.request.params for sequence in self._sequences.values()]
        is_sampled = any(one.temperature > 0 for one in params)
        return SamplingOptions(is_sampled, any(one.banned_ids or one.logit_bias for one in params))

    def _write_params(self, graph: SlotGraph, options: SamplingOptions) -> None:
        """Write the sampling parameters that the graph does not hold yet: those of sequences that joined, or of all if
        another graph held them."""
        if self._written_for != (graph.num_slots, options):
            self._written_for, self._unwritten = (graph.num_slots, options), set(self._sequences)
        if not self._unwritten or options == SamplingOptions():
            self._unwritten.clear()
            return
        head = graph.forward.head
        changed = [(slot, self._sequences[slot]) for slot in self._unwritten if slot in self._sequences]
        if options.is_biased and not all(head.bias.holds(slot, one.request.params) for slot, one in changed):
            # A copy that is still queued must not read a table that is being written.
            self._sent.wait()
        for slot, sequence in changed:
            head.write_params(slice(slot, slot + 1), sequence.request.params, options)
        head.send_params(options)
        self._sent.record()
        self._unwritten.clear()
