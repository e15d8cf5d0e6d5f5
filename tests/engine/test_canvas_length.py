"""Canvas lengths in an engine, by load, by measured times and by acceptance: they never change a token."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.round_cost import RoundCost, TimedRound
from quicksilver.core import Request, Usage
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.canvas_length import CanvasLength
from quicksilver.engine.config import EngineConfig
from tests.support.tiny import decode_params, finish_all, generate, tiny_engine

PROMPTS = [(i, *range(5, 25)) for i in range(6)]
# Forwards whose time does not depend on their rows, and forwards whose time is proportional to them.
FREE = RoundCost({(rows, gated): 1.0 for rows in (16, 64, 512) for gated in (False, True)})
COSTLY = RoundCost({(rows, gated): 1.0 * rows for rows in (1, 2, 4, 8, 16, 64, 512) for gated in (False, True)})
# Forwards of coder-1.5b on an H200, without and with the canvas adapter.
_MS = {16: (1.04, 1.14), 32: (1.14, 1.29), 64: (1.7, 1.92), 128: (1.99, 3.39), 256: (2.61, 4.15), 512: (3.77, 5.44)}
MEASURED = RoundCost({(rows, gated): ms[gated] for rows, ms in _MS.items() for gated in (False, True)})
# Rounds of nano on an H200.
NANO = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.443))


def _texts(config: EngineConfig, decoder: str) -> tuple[list[list[int]], int]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params(decoder, canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    texts = [[token for part in finished[str(i)] for token in part.token_ids] for i in range(len(PROMPTS))]
    return texts, engine.stats().drafted_tokens


def _usages(config: EngineConfig, canvas_len: int) -> list[Usage]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=canvas_len, max_new_tokens=30)))
    ends = [parts[-1].usage for parts in finish_all(engine).values()]
    return [usage for usage in ends if usage is not None]


@pytest.mark.parametrize("canvas_rows", [0, 30])
def test_rounds_are_counted_whatever_the_canvases_length(canvas_rows: int) -> None:
    """A round is two forwards. An answer may end on the first one, or with one more token and no draft."""
    usages = _usages(EngineConfig(num_pages=128, max_rows=256, canvas_rows=canvas_rows), 12)
    assert len(usages) == len(PROMPTS)
    for usage in usages:
        assert usage.rounds <= usage.drafted <= 11 * usage.rounds
        assert abs(usage.forwards - 2 * usage.rounds) <= 1
        assert usage.completion_tokens == usage.forwards + usage.accepted


def test_canvases_shrink_under_load_and_the_text_stays() -> None:
    free, drafted = _texts(EngineConfig(num_pages=128, max_rows=128), "verify")
    bound, drafted_bound = _texts(EngineConfig(num_pages=128, max_rows=128, canvas_rows=30), "verify")
    assert bound == free
    assert drafted_bound < drafted


def test_acceptance_is_kept_from_one_request_to_the_next() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    before = engine.scheduler.canvas_length.history.prefix_acceptance()
    generate(engine, PROMPTS[0], decode_params("verify", canvas_len=8, max_new_tokens=40))
    assert engine.scheduler.canvas_length.history.prefix_acceptance()[0] < before[0]  # a random adapter


def test_an_engine_whose_drafts_fail_stops_drafting_and_tries_again_later() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    engine.scheduler.canvas_length.round_cost = RoundCost({}, NANO)
    engine.add(Request("0", PROMPTS[0], decode_params("verify", canvas_len=16, max_new_tokens=400)))
    lengths: list[int] = []
    while engine.has_work:
        engine.step()
        lengths += [sequence.canvas_limit for sequence in engine.scheduler.running]
    first = lengths.index(1)
    assert set(lengths[:first]) == {16}
    assert 16 in lengths[first:]
    assert lengths.count(1) > 2 * lengths.count(16)


def test_drafts_and_verifications_do_not_share_forwards_for_long() -> None:
    """A request that arrives in between takes a plain step and drafts together with the others."""
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.canvas_length.round_cost = FREE
    mixed: list[bool] = []
    run = engine.backend.run

    def watched(works: list[Work]) -> object:
        tails = [work.tail for work in works if work.tail is not None and work.tail.token_ids]
        mixed.append(len({tail.is_causal for tail in tails}) > 1)
        return run(works)

    engine.backend.run = watched  # type: ignore[method-assign, assignment]
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=8, max_new_tokens=40)))
        engine.step()
        if i % 2:
            engine.step()
    finish_all(engine)
    assert len(mixed) > 20
    assert sum(mixed) <= 2


@pytest.mark.parametrize("cost", [FREE, COSTLY])
def test_no_cost_changes_a_token(cost: RoundCost) -> None:
    alone = [
        generate(tiny_engine(), prompt, decode_params("ar", canvas_len=1, max_new_tokens=30)) for prompt in PROMPTS
    ]
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.canvas_length.round_cost = cost
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    assert [[t for part in finished[str(i)] for t in part.token_ids] for i in range(len(PROMPTS))] == alone
    drafted = engine.stats().drafted_tokens
    assert drafted == 0 if cost is COSTLY else drafted > 0


def simulate(num_requests: int, rate: float, num_steps: int = 3000) -> list[int]:
    """The canvas lengths that requests open, step by step, with drafts of which each token is accepted at `rate`."""
    lengths, rng, chosen = CanvasLength(0, MEASURED), random.Random(0), list[int]()
    params = decode_params("verify", max_new_tokens=100)
    one = Sequence(Request("x", (1,), params), make_decoder(params.decoder))
    for _ in range(num_steps):
        lengths.begin_step([one] * num_requests)
        chosen.append(lengths.limit(num_requests))
        for _ in range(num_requests if chosen[-1] > 1 else 0):
            accepted = next((i for i in range(chosen[-1] - 1) if rng.random() >= rate), chosen[-1] - 1)
            lengths.observe(accepted, chosen[-1] - 1)
    return chosen


@pytest.mark.parametrize("num_requests", [8, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.75])
def test_the_length_is_stable_under_a_steady_load(num_requests: int, rate: float) -> None:
    chosen = simulate(num_requests, rate)
    changes = sum(a != b for a, b in pairwise(chosen[300:]))
    assert changes <= 4, f"{changes} changes among {sorted(set(chosen))}"


def test_rejected_drafts_end_in_autoregression_under_load() -> None:
    assert set(simulate(32, 0.05)[300:]) == {1}
    assert min(simulate(8, 0.9)[300:]) > 1


def test_canvases_are_shortened_while_requests_wait() -> None:
    length = CanvasLength(canvas_rows=0, round_cost=None, max_rows=64)
    assert length.limit(4) == 0
    assert length.limit(4, has_backlog=True) == 4
    assert length.limit(100, has_backlog=True) == 1
