"""Checks of block rounds against ordinary forwards. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.batch import build_batch
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.block_kernels import (
    BlockRows,
    BlockState,
    decide_blocks,
    snapshot_width,
    write_block_rows,
)
from quicksilver.backends.cuda.block_rounds import BlockRounds, shown
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.attention import cut_tiles
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.dialect import ContextKind, Dialect
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoder import Place
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer
from tests.support.dialect_graph_checks import dialect_on_graphs
from tests.support.graph_checks import SMALL_NORMED, engine_of
from tests.support.kernel_checks import here
from tests.support.proposals import proposal

PAGE_SIZE = 16


def check_decisions(params: DecoderParams, dialect: Dialect, seed: int) -> None:
    """The device decides the positions that the decoder decides, forward by forward, over several blocks."""
    rng, length, count = random.Random(seed), dialect.block_len, 3
    decoder = make_decoder(params, dialect)
    state = BlockState.allocate(count, length, 4, here().device)
    texts = [[1] * rng.randrange(1, 3 * length) for _ in range(count - 1)]
    canvases = [decoder.open(99, Place(len(text), 1)) for text in texts]
    for b, (text, canvas) in enumerate(zip(texts, canvases, strict=True)):
        state.set_rule(b, params)
        state.start[b], state.step[b] = len(text) - canvas.num_fixed, 0
        state.num_fixed[b], state.num_passes[b] = canvas.num_fixed, 0
        state.writes[b] = canvas.num_fixed == 0
        state.block[b] = torch.tensor([1] * canvas.num_fixed + [-1] * (length - canvas.num_fixed))
    results = torch.zeros(4, count * length, dtype=torch.int32)
    for _ in range(20):
        tokens = [rng.randrange(50) for _ in range(count * length)]
        # Few different values, so that some are equal.
        confidence = [rng.randrange(1, 9) / 8 for _ in tokens]
        results[0] = torch.tensor(tokens)
        results[1] = torch.tensor(confidence, dtype=torch.float32).view(torch.int32)
        decide_blocks(state, results.to(here().device), dialect)
        for b, (text, canvas) in enumerate(zip(texts, canvases, strict=True)):
            own = slice(b * length + canvas.num_fixed, b * length + canvas.num_fixed + len(canvas.token_ids))
            decision = decoder.decide(canvas, proposal(tokens[own], confidence[own]))
            text += decision.commit
            is_complete = decision.canvas is None and len(text) % length == 0
            canvases[b] = decision.canvas or decoder.open(99, Place(len(text), 1))
            after = canvases[b]
            shown = np.where(after.is_masked, -1, after.token_ids).tolist()
            known = text[len(text) - after.num_fixed :] if after.num_fixed else []
            unopened = [-1] * (length - len(known) - len(shown))  # after the first position of a block
            assert state.block[b].tolist() == known + shown + unopened
            assert (int(state.start[b]), int(state.step[b])) == (len(text) - after.num_fixed, after.step)
            assert bool(state.writes[b]) == is_complete
            assert not is_complete or state.before[b].tolist() == text[-length:]
    assert int(state.start[count - 1]) == -1, "an unused sequence changed"


def check_rows(dialect: Dialect, capacity: int = 3, tile_rows: int = 16) -> None:
    """The rows of a round are those of the batch that the host builds for the same works. The fourth sequence is
    unused. `capacity`: of the three others two write a block."""
    length, decoder, count = dialect.block_len, Confidence(DecoderParams(DecoderName.CONFIDENCE), dialect), 4
    works, state = list[Work](), BlockState.allocate(count, length, 8, here().device)
    for b, (num_tokens, num_cached) in enumerate(
        ((3 * length, 2 * length), (2 * length + 1, 2 * length), (2 * length, length))
    ):
        one = Sequence(Request("x", tuple(range(3, 3 + num_tokens)), DecodeParams()), decoder, dialect=dialect)
        one.pages, one.kv_len = [7 - b, 2 + b, 5, 9, 1, 8], num_cached
        one.open_canvas()
        work = Work(one, num_cached, num_tokens - one.tail.num_fixed, one.tail)
        works.append(work)
        state.start[b], state.step[b], state.writes[b] = work.end, 4 + b, work.end > work.start
        state.block[b] = torch.tensor(shown(work, length))
        if work.end > work.start:
            state.before[b] = torch.tensor(one.tokens[work.start : work.end])
        state.pages[b, : len(one.pages)] = torch.tensor(one.pages)
    num_tiles = count * -(-2 * length // tile_rows)
    columns, tiles, head, snapshot = (
        torch.full(shape, 99, dtype=torch.int32, device=here().device)
        for shape in ((8, (count + capacity) * length), (num_tiles, 3), (3, 4 * length), (4, snapshot_width(length)))
    )
    write_block_rows(state, capacity, BlockRows(columns, tiles, head, tile_rows), snapshot, PAGE_SIZE, dialect)
    if capacity < 2:
        assert snapshot[:, 0].tolist() == [works[0].end, works[1].end, -2, -1]
        assert (columns[3] >= 0).sum() == length, "other rows than those of the first block write"
        return
    batch = build_batch(works, PAGE_SIZE)
    plan, num_used = batch.plan, len(batch.token_ids)
    wanted = (batch.token_ids, batch.mask_index, plan.positions, plan.slots, plan.prefix_end, plan.span_start)
    for found, column in zip(columns.cpu().long(), (*wanted, plan.span_end, plan.is_canvas.long()), strict=True):
        assert found[:num_used].tolist() == column.tolist()
    assert columns[3, num_used:].tolist() == [-1] * (len(columns[3]) - num_used)
    assert not columns[[0, 4, 5, 6, 7], num_used:].any()
    segments = [(segment.row_start, segment.row_end) for segment in plan.segments]
    unused = [(0, 0, 0), (3, num_used, num_used + length)]
    assert {tuple(tile) for tile in tiles.tolist()} - set(unused) <= set(cut_tiles(segments, tile_rows))
    assert set(cut_tiles(segments, tile_rows)) <= {tuple(tile) for tile in tiles.tolist()}
    proposing = iter(batch.proposing.tolist())
    for b, work in enumerate(works):
        own, known = slice(b * length, (b + 1) * length), work.tail.num_fixed if work.tail is not None else 0
        assert head[0, own].tolist()[known:] == [next(proposing) for _ in range(length - known)]
        assert head[1, own].tolist() == list(range(work.end, work.end + length))
        assert head[2, own].tolist() == [4 + b] * length
        assert snapshot[b, :3].tolist() == [work.end, 4 + b, work.end > work.start]


class CountingRounds(BlockRounds):
    """Counts forwards that rounds answered, and those that they left to ordinary forwards."""

    num_read = num_left = 0

    def run(self, works):  # type: ignore[no-untyped-def]
        outcomes = super().run(works)
        self.num_read += outcomes is not None
        self.num_left += outcomes is None
        return outcomes


def block_engine(model: Transformer, *, max_sequences: int) -> tuple[Engine, CountingRounds | None]:
    """An engine on graphs, with rounds for up to `max_sequences` sequences; 0 for none. On a GPU the products are
    batch-invariant, so that the numbers are equal too."""
    made = list[CountingRounds]()
    mode = MatmulMode.BATCH_INVARIANT if here().device == "cuda" else MatmulMode.FASTEST

    def make(cache: PagedCache) -> CudaBackend:
        limits = GraphLimits(max_rows=128, max_segments=8, context_len=model.config.context_len, matmul_mode=mode)
        backend = CudaBackend(GraphExecutor(model, cache, 64, limits))
        if max_sequences:
            made.append(CountingRounds(backend.executor, max_sequences))
            backend.blocks = made[0]
        return backend

    engine = engine_of(model, make)
    return engine, made[0] if made else None


def run_all(engine: Engine, requests: list[Request], at_once: int = 1) -> dict[str, list[int]]:
    """Adds `at_once` requests at a time, while others run."""
    found, left = {one.id: list[int]() for one in requests}, list(requests)
    while left or engine.has_work:
        for request in left[:at_once]:
            engine.add(request)
        left = left[at_once:]
        for event in [event for _ in range(4) for event in engine.step()]:
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            found[event.request_id] += event.token_ids
    return found


def check_rounds(
    model: Transformer, options: list[DecodeParams], prompt_lens: list[int], max_sequences: int, at_once: int = 1
) -> None:
    """Requests that join and leave have the same tokens with rounds as without, and rounds were used."""
    rng, vocab_size = random.Random(5), model.config.vocab_size
    requests = [
        Request(str(i), tuple(rng.randrange(vocab_size - 2) for _ in range(length)), replace(one, seed=i))
        for i, (length, one) in enumerate(zip(prompt_lens, options * len(prompt_lens), strict=False))
    ]
    plain, _ = block_engine(model, max_sequences=0)
    engine, rounds = block_engine(model, max_sequences=max_sequences)
    assert rounds is not None
    found = run_all(engine, requests, at_once)
    assert found == run_all(plain, requests, at_once)
    if here().dtype is torch.float32:
        assert found == run_all(engine_of(model, None), requests, at_once)
    assert rounds.num_read > 2 * rounds.num_left, (rounds.num_read, rounds.num_left)
    assert engine.pool.num_free == engine.info.num_pages


BLOCK = Dialect(context=ContextKind.BLOCK, is_shifted=False, block_len=8, mask_id=59)
SHIFTED = replace(BLOCK, is_shifted=True, has_context_seed=True)
RULES = [
    DecoderParams(DecoderName.EDIT, threshold=0.6, edit_threshold=0.7, edit_passes=3, stutter_penalty=0.0),
    DecoderParams(DecoderName.CONFIDENCE, rule=CommitRule.THRESHOLD, threshold=0.6),
    DecoderParams(DecoderName.CONFIDENCE, rule=CommitRule.STATIC, steps=3),
    DecoderParams(DecoderName.CONFIDENCE, rule=CommitRule.DYNAMIC, threshold=0.8, steps=3),
]


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for params, block_len, sub_block_len in product(RULES, (4, 32), (0, 4)):
        dialect = replace(BLOCK, block_len=block_len, sub_block_len=sub_block_len)
        label = f"{params.name} {params.rule} {block_len} {sub_block_len}"
        yield f"block decisions {label}", partial(check_decisions, params, dialect, 1)
        if params.name is DecoderName.CONFIDENCE:
            shifted = replace(SHIFTED, block_len=block_len, sub_block_len=sub_block_len)
            yield f"block decisions shifted {label}", partial(check_decisions, params, shifted, 1)
    for block_len, capacity, tile_rows in ((4, 4, 16), (6, 3, 8), (32, 2, 32), (4, 1, 16)):
        check = partial(check_rows, replace(BLOCK, block_len=block_len), capacity, tile_rows)
        yield f"block rows {block_len} {capacity}", check
    options = [DecodeParams(60, decoder=params) for params in RULES]
    options += [replace(one, temperature=0.8) for one in options]
    for at_once in (1, 6):
        model = partial(dialect_on_graphs, "sdar", SMALL_NORMED)
        yield f"block rounds {at_once}", partial(_check_rounds_of, model, options, at_once)


def _check_rounds_of(model: Callable[[], Transformer], options: list[DecodeParams], at_once: int) -> None:
    with torch.inference_mode():
        check_rounds(model(), options, [5, 4, 9, 3, 40, 31], max_sequences=8, at_once=at_once)
