"""The canvas length that is fastest by measured times, number of requests and acceptance."""

from __future__ import annotations

import pytest

from quicksilver.backends.round_cost import MAX_DRAFT_LEN, TREE_GAIN, RoundCost, TimedRound
from quicksilver.engine.step_limits import DECAY, AcceptanceHistory

# Forwards whose time does not depend on their rows, and forwards whose time is proportional to them.
FREE = RoundCost({(rows, gated): 1.0 for rows in (16, 64, 512) for gated in (False, True)})
COSTLY = RoundCost({(rows, gated): 1.0 * rows for rows in (1, 2, 4, 8, 16, 64, 512) for gated in (False, True)})

# Rounds of coder-1.5b and nano on an H200, after some hundred cached tokens.
CODER = (TimedRound(1, 1, 1.493), TimedRound(1, 16, 3.149))
CODER_CROWD = (TimedRound(2, 16, 3.181), TimedRound(4, 16, 3.882))
NANO = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.443))
PLAIN = {16: 1.423, 32: 1.557, 64: 1.9, 128: 1.95, 256: 2.481, 512: 3.632}
GATED = {16: 1.561, 32: 1.724, 64: 2.059, 128: 3.355, 256: 4.033, 512: 5.336}
CODER_FORWARDS = {(n, False): ms for n, ms in PLAIN.items()} | {(n, True): ms for n, ms in GATED.items()}
# Share of drafts of real text that were accepted up to each index.
CODER_JSON = [0.94, 0.84, 0.69, 0.53, 0.4, 0.32, 0.24, 0.23, 0.18, 0.11, 0.06, 0.06, 0.06, 0.03, 0.02]
CODER_CHAT = [0.52, 0.29, 0.16, 0.08, 0.04, 0.02, 0.01]
NANO_CHAT = [0.52, 0.2, 0.08, 0.03, 0.02]
NANO_CODE = [0.83, 0.59, 0.36, 0.19, 0.06, 0.01, 0.01]
NANO_EDITS = [0.95, 0.86, 0.65, 0.44, 0.29, 0.16, 0.09, 0.04, 0.03, 0.01]
NANO_TOOLS = [0.87, 0.81, 0.65, 0.42, 0.39, 0.39, 0.29, 0.23, 0.16, 0.13, 0.13, 0.13, 0.1, 0.06]


def steady(rate: float) -> list[float]:
    """Every drafted token has the same acceptance rate."""
    return [rate**place for place in range(1, MAX_DRAFT_LEN + 1)]


def test_a_round_yields_two_own_tokens_and_the_accepted_draft() -> None:
    assert TimedRound(1, 1, 1.0).tokens_per_ms(steady(0.9)) == 1
    assert TimedRound(1, 16, 1.0).tokens_per_ms(steady(0.0)) == 2
    assert TimedRound(1, 16, 1.0).tokens_per_ms(steady(1.0)) == 17
    assert TimedRound(1, 3, 0.5).tokens_per_ms(steady(0.5)) == 5.5


def test_trees_add_to_a_draft_whichever_rounds_were_seen() -> None:
    plain, tree = TimedRound(1, 16, 1.0), TimedRound(1, 16, 1.0, tree_rows=32)
    seen = [TREE_GAIN[32] * rate for rate in steady(0.5)]
    assert tree.tokens_per_ms(steady(0.5)) > plain.tokens_per_ms(steady(0.5))
    assert tree.tokens_per_ms(seen, measured_rows=32) == pytest.approx(tree.tokens_per_ms(steady(0.5)))
    assert plain.tokens_per_ms(seen, measured_rows=32) == pytest.approx(plain.tokens_per_ms(steady(0.5)))
    assert tree.tokens_per_ms(steady(1.0)) == plain.tokens_per_ms(steady(1.0)) == 17


def test_the_choice_does_not_depend_on_whether_trees_are_in_use() -> None:
    ways = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.5, 16), TimedRound(1, 8, 1.42))
    pace = RoundCost({}, ways)
    for plain in (NANO_CHAT, NANO_CODE, NANO_EDITS, NANO_TOOLS):
        seen = [TREE_GAIN[16] * rate for rate in plain]
        speeds = {way.canvas_len: way.tokens_per_ms(plain) for way in ways}
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


def test_requests_with_a_grammar_cannot_use_graphs_that_run_ahead() -> None:
    forwards = {(16, False): 1.6, (16, True): 2.3, (32, False): 1.8, (32, True): 2.5}
    pace = RoundCost(forwards, (TimedRound(2, 16, 3.9),))
    assert pace.canvas_len(2, steady(0.75)) == 16
    assert pace.canvas_len(2, steady(0.75), num_grammars=1) == 8


def test_a_grammar_costs_each_forward_so_longer_canvases_pay() -> None:
    pace = RoundCost(CODER_FORWARDS, CODER + CODER_CROWD)
    assert [pace.canvas_len(32, steady(rate)) for rate in (0.4, 0.6, 0.8)] == [1, 2, 4]
    assert [pace.canvas_len(32, steady(rate), num_grammars=32) for rate in (0.4, 0.6, 0.8)] == [2, 4, 8]


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
    lengths = [pace.canvas_len(1, steady(rate), 16) for rate in (0.3, 0.2, 0.1)]
    assert lengths == [16, 16, 1]
    assert pace.canvas_len(1, steady(0.2), 1) == 1  # and begins only where it is clearly faster
    assert pace.canvas_len(1, steady(0.35), 1) == 16


def test_a_new_engine_starts_with_long_drafts() -> None:
    for rounds in (CODER, NANO):
        assert RoundCost({}, rounds).canvas_len(1, AcceptanceHistory().prefix_acceptance()) == 16


def test_every_index_has_its_own_rate() -> None:
    """Two accepted tokens and then none."""
    history = AcceptanceHistory()
    for _ in range(200):
        history.add(2, 15)
    survival = history.prefix_acceptance()
    assert survival[1] > 0.95
    assert survival[2] < 0.05
    assert survival == sorted(survival, reverse=True)


def test_an_index_without_verifications_has_the_rate_of_the_one_before() -> None:
    history = AcceptanceHistory()
    for _ in range(200):
        history.add(7, 7)
    survival = history.prefix_acceptance()
    assert survival[14] > 0.85
    history.add(0, 7)
    assert history.prefix_acceptance()[14] < survival[14]


def test_history_decays_to_the_prior() -> None:
    history, usual = AcceptanceHistory(), AcceptanceHistory().prefix_acceptance()
    for _ in range(30):
        history.add(0, 15)
    assert history.prefix_acceptance()[0] < 0.1
    for _ in range(100):
        history.decay()
    assert 0.1 < history.prefix_acceptance()[0] < 0.25  # 15 of 30 are left
    for _ in range(2000):
        history.decay()
    assert history.prefix_acceptance() == pytest.approx(usual, rel=1e-3)
    assert pytest.approx(0.5, abs=0.01) == DECAY**100


def test_rows_within_a_time_follow_the_largest_forwards() -> None:
    cost = RoundCost({(16, False): 1.0, (256, False): 2.5, (512, False): 4.0, (512, True): 9.0})
    assert cost.rows_within(4.0) == 512
    assert cost.rows_within(7.0) == 1024
    assert RoundCost({(512, False): 4.0}).rows_within(7.0) == 0
