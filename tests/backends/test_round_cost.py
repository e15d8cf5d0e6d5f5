"""Canvases as long as pays: by the device's times, by how many run, by what became of drafts. No token changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.base import Work
from quicksilver.backends.round_cost import FADING, LONGEST_DRAFT, TREE_GAIN, AcceptanceHistory, RoundCost, TimedRound
from quicksilver.backends.sequence import Sequence
from quicksilver.core import Request
from quicksilver.diffusion.decoder import Canvas, Tail
from quicksilver.engine.config import EngineConfig
from tests.support.tiny import decode_params, finish_all, generate, tiny_engine

FREE = RoundCost({(rows, gated): 1.0 for rows in (16, 64, 512) for gated in (False, True)})
"""Rows cost nothing."""
COSTLY = RoundCost({(rows, gated): 1.0 * rows for rows in (1, 2, 4, 8, 16, 64, 512) for gated in (False, True)})
"""Every row costs the same: drafting cannot pay."""
PROMPTS = [(i, *range(5, 25)) for i in range(5)]


CODER = (TimedRound(1, 1, 1.493), TimedRound(1, 16, 3.149))
CODER_CROWD = (TimedRound(2, 16, 3.181), TimedRound(4, 16, 3.882))
NANO = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.443))
"""Rounds of coder-1.5b and nano on an H200, behind some hundred cached tokens."""
PLAIN = {16: 1.423, 32: 1.557, 64: 1.9, 128: 1.95, 256: 2.481, 512: 3.632}
GATED = {16: 1.561, 32: 1.724, 64: 2.059, 128: 3.355, 256: 4.033, 512: 5.336}
CODER_FORWARDS = {(n, False): ms for n, ms in PLAIN.items()} | {(n, True): ms for n, ms in GATED.items()}
CODER_JSON = [0.94, 0.84, 0.69, 0.53, 0.4, 0.32, 0.24, 0.23, 0.18, 0.11, 0.06, 0.06, 0.06, 0.03, 0.02]
CODER_CHAT = [0.52, 0.29, 0.16, 0.08, 0.04, 0.02, 0.01]
NANO_CHAT = [0.52, 0.2, 0.08, 0.03, 0.02]
NANO_CODE = [0.83, 0.59, 0.36, 0.19, 0.06, 0.01, 0.01]
NANO_EDITS = [0.95, 0.86, 0.65, 0.44, 0.29, 0.16, 0.09, 0.04, 0.03, 0.01]
NANO_TOOLS = [0.87, 0.81, 0.65, 0.42, 0.39, 0.39, 0.29, 0.23, 0.16, 0.13, 0.13, 0.13, 0.1, 0.06]
"""How many drafts of real text were right up to each place."""


def steady(chance: float) -> list[float]:
    """Every drafted token is as good as the others."""
    return [chance**place for place in range(1, LONGEST_DRAFT + 1)]


def test_a_round_yields_the_models_own_two_tokens_and_what_was_drafted_right() -> None:
    assert TimedRound(1, 1, 1.0).speed(steady(0.9)) == 1
    assert TimedRound(1, 16, 1.0).speed(steady(0.0)) == 2
    assert TimedRound(1, 16, 1.0).speed(steady(1.0)) == 17
    assert TimedRound(1, 3, 0.5).speed(steady(0.5)) == 5.5


def test_trees_add_to_a_draft_whichever_rounds_were_seen() -> None:
    plain, tree = TimedRound(1, 16, 1.0), TimedRound(1, 16, 1.0, tree_rows=32)
    seen = [TREE_GAIN[32] * chance for chance in steady(0.5)]
    assert tree.speed(steady(0.5)) > plain.speed(steady(0.5))
    assert tree.speed(seen, seen_rows=32) == pytest.approx(tree.speed(steady(0.5)))
    assert plain.speed(seen, seen_rows=32) == pytest.approx(plain.speed(steady(0.5)))
    assert tree.speed(steady(1.0)) == plain.speed(steady(1.0)) == 17


def test_the_choice_does_not_depend_on_whether_trees_are_in_use() -> None:
    ways = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.5, 16), TimedRound(1, 8, 1.42))
    pace = RoundCost({}, ways)
    for plain in (NANO_CHAT, NANO_CODE, NANO_EDITS, NANO_TOOLS):
        seen = [TREE_GAIN[16] * chance for chance in plain]
        speeds = {way.canvas_len: way.speed(plain) for way in ways}
        fresh = pace.canvas_len(1, plain, 8)
        assert pace.canvas_len(1, seen, 16) == fresh or max(speeds[16] / speeds[8], speeds[8] / speeds[16]) < 1.06


def test_free_rows_make_long_canvases_and_costly_ones_none() -> None:
    assert FREE.canvas_len(4, steady(0.9)) == 16
    assert COSTLY.canvas_len(4, steady(0.8)) == 1


def test_what_was_not_timed_is_not_chosen() -> None:
    assert FREE.canvas_len(40, steady(0.9)) == 8


def test_many_requests_fall_back_to_autoregression() -> None:
    """Long canvases for few, none where rows cost more than they bring."""
    pace = RoundCost(CODER_FORWARDS, CODER + CODER_CROWD)
    lengths = [pace.canvas_len(count, steady(0.75)) for count in (1, 2, 4, 8, 32, 64)]
    assert lengths == [16, 16, 16, 4, 4, 4]
    assert [pace.canvas_len(count, steady(0.4)) for count in (8, 32, 64)] == [2, 1, 1]


def test_a_graph_that_runs_ahead_beats_forwards_that_wait_for_the_host() -> None:
    forwards = {(16, False): 1.6, (16, True): 2.3, (32, False): 1.8, (32, True): 2.5}
    assert RoundCost(forwards).canvas_len(2, steady(0.75)) == 8
    assert RoundCost(forwards, (TimedRound(2, 16, 3.9),)).canvas_len(2, steady(0.75)) == 16


@pytest.mark.parametrize(
    ("rounds", "survival", "wanted"),
    [
        (CODER, CODER_JSON, 16),
        (CODER, CODER_CHAT, 16),
        (NANO, NANO_CHAT, 16),
        (NANO, NANO_EDITS, 16),
        (NANO, NANO_TOOLS, 16),
        (CODER, steady(0.05), 1),
        (NANO, steady(0.1), 1),
    ],
)
def test_a_lone_request_gets_the_round_that_its_acceptance_suits(
    rounds: tuple[TimedRound, ...], survival: list[float], wanted: int
) -> None:
    assert RoundCost({}, rounds).canvas_len(1, survival) == wanted


def test_a_length_in_use_stays_near_a_tie_and_goes_when_another_is_clearly_better() -> None:
    pace = RoundCost({}, (*NANO, TimedRound(1, 8, 1.37)))
    assert [pace.canvas_len(1, NANO_EDITS, current) for current in (8, 16)] == [8, 16]
    assert pace.canvas_len(1, [0.97, 0.93, 0.88, 0.8, 0.7, 0.5, 0.3], 16) == 8
    assert pace.canvas_len(1, NANO_TOOLS, 8) == 16


def test_drafting_ends_where_autoregression_is_as_fast() -> None:
    pace = RoundCost({}, NANO)
    lengths = [pace.canvas_len(1, steady(chance), 16) for chance in (0.3, 0.2, 0.1)]
    assert lengths == [16, 16, 1]
    assert pace.canvas_len(1, steady(0.2), 1) == 1  # and begins only where it is clearly faster
    assert pace.canvas_len(1, steady(0.35), 1) == 16


def test_a_new_engine_believes_in_long_drafts() -> None:
    for rounds in (CODER, NANO):
        assert RoundCost({}, rounds).canvas_len(1, AcceptanceHistory().survival()) == 16


def test_places_are_remembered_apart() -> None:
    """Two good tokens and then none, as often as it takes to be believed."""
    memory = AcceptanceHistory()
    for _ in range(200):
        memory.add(2, 15)
    survival = memory.survival()
    assert survival[1] > 0.95
    assert survival[2] < 0.05
    assert survival == sorted(survival, reverse=True)


def test_what_was_never_tried_is_like_the_place_before() -> None:
    memory = AcceptanceHistory()
    for _ in range(200):
        memory.add(7, 7)
    survival = memory.survival()
    assert survival[14] > 0.85
    memory.add(0, 7)
    assert memory.survival()[14] < survival[14]


def test_memory_fades_to_what_is_usual() -> None:
    memory, usual = AcceptanceHistory(), AcceptanceHistory().survival()
    for _ in range(30):
        memory.add(0, 15)
    assert memory.survival()[0] < 0.1
    for _ in range(100):
        memory.fade()
    assert 0.1 < memory.survival()[0] < 0.25  # 15 of 30 are left
    for _ in range(2000):
        memory.fade()
    assert memory.survival() == pytest.approx(usual, rel=1e-3)
    assert pytest.approx(0.5, abs=0.01) == FADING**100


def test_an_engine_remembers_what_became_of_drafts_beyond_a_request() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    before = engine.scheduler.canvas_length.history.survival()
    generate(engine, PROMPTS[0], decode_params("verify", canvas_len=8, max_new_tokens=40))
    assert engine.scheduler.canvas_length.history.survival()[0] < before[0]  # a random adapter


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
    """Whoever comes in between takes a plain step and drafts with the others."""
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


@pytest.mark.parametrize("pace", [FREE, COSTLY])
def test_no_pace_changes_a_token(pace: RoundCost) -> None:
    alone = [
        generate(tiny_engine(), prompt, decode_params("ar", canvas_len=1, max_new_tokens=30)) for prompt in PROMPTS
    ]
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.canvas_length.round_cost = pace
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    assert [[t for part in finished[str(i)] for t in part.token_ids] for i in range(len(PROMPTS))] == alone
    drafted = engine.stats().drafted_tokens
    assert drafted == 0 if pace is COSTLY else drafted > 0


def reopened(sequence: Sequence) -> Tail:
    sequence.open_canvas()
    return sequence.tail


def test_a_draft_that_cost_nothing_gives_way_to_longer_canvases() -> None:
    """Rounds of one forward always have a next draft; without this nobody would ever leave them."""
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    engine.add(Request("0", PROMPTS[0], decode_params("verify", canvas_len=16, max_new_tokens=60)))
    (sequence,) = (engine.step(), engine.scheduler.running)[1]
    sequence.canvas = replace(Canvas.blank(7), is_draft=True, step=1)
    sequence.canvas_limit, sequence.is_draft_free = 8, True
    assert reopened(sequence).is_causal
    sequence.canvas_limit, sequence.is_draft_free = 16, False
    assert reopened(sequence).is_causal  # a forward was paid for it
    sequence.is_draft_free = True
    tail = reopened(sequence)
    assert (tail.is_causal, len(tail.token_ids)) == (False, 15)
