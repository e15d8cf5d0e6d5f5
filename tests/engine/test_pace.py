"""Canvases as long as pays: by the device's times, by how many run, by what became of drafts. No token changes."""

from __future__ import annotations

import pytest

from quicksilver.core import Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.pace import Pace, TimedRound, chance_of, yield_of
from quicksilver.engine.sequence import Work
from tests.tiny import decode_params, finish_all, generate, tiny_engine

FREE = Pace({(rows, gated): 1.0 for rows in (16, 64, 512) for gated in (False, True)})
"""Rows cost nothing."""
COSTLY = Pace({(rows, gated): 1.0 * rows for rows in (1, 2, 4, 8, 16, 64, 512) for gated in (False, True)})
"""Every row costs the same: drafting cannot pay."""
PROMPTS = [(i, *range(5, 25)) for i in range(5)]


def test_a_round_yields_the_models_own_two_tokens_and_what_was_drafted_right() -> None:
    assert yield_of(1, 0.9) == 1
    assert yield_of(16, 0.0) == 2
    assert yield_of(16, 1.0) == 17
    assert yield_of(3, 0.5) == 2.75


def test_free_rows_make_long_canvases_and_costly_ones_none() -> None:
    assert FREE.canvas_len(4, 0.8) == 16
    assert COSTLY.canvas_len(4, 0.8) == 1


def test_what_was_not_timed_is_not_chosen() -> None:
    assert FREE.canvas_len(40, 0.9) == 8


def test_many_requests_fall_back_to_autoregression() -> None:
    """Times of a 1.5B model on an H200: long canvases for few, none where rows cost more than they bring."""
    plain = {16: 1.6, 32: 1.8, 64: 2.2, 128: 2.4, 256: 2.8, 512: 4.5}
    gated = {16: 2.3, 32: 2.5, 64: 2.9, 128: 3.4, 256: 4.4, 512: 7.0}
    pace = Pace({(n, False): ms for n, ms in plain.items()} | {(n, True): ms for n, ms in gated.items()})
    lengths = [pace.canvas_len(count, 0.75) for count in (2, 8, 32, 64)]
    assert lengths[0] >= 8
    assert lengths == sorted(lengths, reverse=True)
    assert pace.canvas_len(64, 0.2) == 1


def test_a_graph_that_runs_ahead_beats_forwards_that_wait_for_the_host() -> None:
    forwards = {(16, False): 1.6, (16, True): 2.3, (32, False): 1.8, (32, True): 2.5}
    assert Pace(forwards).canvas_len(2, 0.75) == 8
    assert Pace(forwards, (TimedRound(2, 16, False, 3.9),)).canvas_len(2, 0.75) == 16


@pytest.mark.parametrize(("chance", "wanted"), [(0.02, 1), (0.6, 8), (0.95, 16)])
def test_a_lone_request_gets_the_round_that_its_acceptance_suits(chance: float, wanted: int) -> None:
    rounds = (TimedRound(1, 1, False, 1.0), TimedRound(1, 8, True, 1.5), TimedRound(1, 16, False, 2.4))
    assert Pace({}, rounds).canvas_len(1, chance) == wanted


def test_requests_are_counted_by_what_became_of_their_drafts() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    assert chance_of([]) == 0.75
    engine.add(Request("0", PROMPTS[0], decode_params("verify", canvas_len=8, max_new_tokens=40)))
    for _ in range(20):
        engine.step()
    (sequence,) = engine.scheduler.running
    assert 0 < sequence.rejected <= sequence.rounds
    assert chance_of([sequence]) < 0.75  # a random adapter


def test_drafts_and_verifications_do_not_share_forwards_for_long() -> None:
    """Whoever comes in between takes a plain step and drafts with the others."""
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.pace = FREE
    mixed: list[bool] = []
    run = engine.runner.run

    def watched(works: list[Work]) -> object:
        tails = [work.tail for work in works if work.tail is not None and work.tail.token_ids]
        mixed.append(len({tail.is_causal for tail in tails}) > 1)
        return run(works)

    engine.runner.run = watched  # type: ignore[method-assign, assignment]
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=8, max_new_tokens=40)))
        engine.step()
        if i % 2:
            engine.step()
    finish_all(engine)
    assert len(mixed) > 20
    assert sum(mixed) <= 2


@pytest.mark.parametrize("pace", [FREE, COSTLY])
def test_no_pace_changes_a_token(pace: Pace) -> None:
    alone = [
        generate(tiny_engine(), prompt, decode_params("ar", canvas_len=1, max_new_tokens=30)) for prompt in PROMPTS
    ]
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.pace = pace
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    assert [[t for part in finished[str(i)] for t in part.token_ids] for i in range(len(PROMPTS))] == alone
    drafted = engine.stats().drafted_tokens
    assert drafted == 0 if pace is COSTLY else drafted > 0
