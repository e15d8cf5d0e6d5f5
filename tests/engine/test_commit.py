"""What a forward's outcome does to its sequence: tokens, canvas, KV length, counts and events."""

from __future__ import annotations

import pytest

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.core import Delta, FinishReason, Frame, Request, ThinkBudget, TokenConstraint, TokenLogprob
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.commit import CommitResult, begin, commit
from quicksilver.errors import RowFailed
from tests.support.proposals import proposal_of
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import decode_params

PROMPT = (3, 1, 4, 1, 5)


def sequence(constraint: TokenConstraint | None = None, name: str = "verify", **changes: object) -> Sequence:
    params = decode_params(name, **{"canvas_len": 4, "max_new_tokens": 20, "stop_ids": (STOP,), **changes})
    return Sequence(Request("x", PROMPT, params), make_decoder(params.decoder), constraint)


def proposal(*tokens: int) -> Proposal:
    return proposal_of(tokens, [1.0] * len(tokens), [1.0] * len(tokens))


def forward(one: Sequence, *tokens: int, **fields: object) -> CommitResult:
    """One forward over the whole sequence in which row i proposes tokens[i]."""
    one.open_canvas()
    work = Work(one, one.kv_len, len(one.tokens), one.tail)
    assert work.num_proposals == len(tokens)
    return commit(work, Outcome(proposal(*tokens), **{"logprobs": [], **fields}))  # type: ignore[arg-type]


def delta(result: CommitResult) -> Delta:
    (event,) = (event for event in result.events if isinstance(event, Delta))
    return event


def test_a_draft_commits_its_first_token_and_keeps_the_rest_on_the_canvas() -> None:
    one = sequence()
    result = forward(one, 10, 11, 12, 13)
    assert delta(result).token_ids == (10,)
    assert one.canvas is not None
    assert one.canvas.token_ids.tolist() == [11, 12, 13]
    assert (one.kv_len, one.drafted, one.rounds, result.num_verified) == (len(PROMPT), 3, 1, 0)


@pytest.mark.parametrize(
    ("proposed", "committed", "accepted"),
    [((11, 12, 13, 14), (11, 12, 13, 14), 3), ((11, 12, 50, 51), (11, 12, 50), 2), ((50, 51, 52, 53), (50,), 0)],
)
def test_a_verification_commits_what_agrees_and_one_token_more(
    proposed: tuple[int, ...], committed: tuple[int, ...], accepted: int
) -> None:
    one = sequence()
    forward(one, 10, 11, 12, 13)
    result = forward(one, *proposed)
    assert delta(result).token_ids == committed
    assert (result.num_verified, result.num_accepted, one.accepted) == (3, accepted, accepted)
    assert one.kv_len == len(one.tokens) - 1
    assert one.canvas is None


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it() -> None:
    one = sequence()
    forward(one, 10, 11, STOP, 13)
    last = delta(forward(one, 11, STOP, 13, 14))
    assert (last.token_ids, last.finish) == ((11,), FinishReason.STOP)
    assert one.generated == [10, 11]
    assert one.accepted == 2


def test_the_token_limit_ends_the_answer() -> None:
    one = sequence(max_new_tokens=3)
    forward(one, 10, 11, 12)
    last = delta(forward(one, 11, 12, 13))
    assert (last.token_ids, last.finish) == ((11, 12), FinishReason.LENGTH)


def test_numbers_that_are_not_finite_fail_the_request_and_change_nothing() -> None:
    one = sequence()
    one.open_canvas()
    bad = proposal(1, 2, 3, 4)
    bad.is_finite[2] = False
    with pytest.raises(RowFailed):
        commit(Work(one, 0, len(PROMPT), one.tail), Outcome(bad, []))
    assert (one.tokens, one.kv_len) == (list(PROMPT), 0)


def test_forced_tokens_follow_at_once_and_cost_no_forward() -> None:
    """The sixth token of the toy grammar is determined."""
    one = sequence(Staircase(), name="ar", canvas_len=1)
    assert begin(one) == []
    for place in range(4):
        assert delta(forward(one, place)).num_forced == 0
    last = delta(forward(one, 4))
    assert (last.token_ids, last.num_forced) == ((4, 12), 1)
    assert one.kv_len == len(one.tokens) - 2


def test_a_decision_is_cut_before_its_first_illegal_token() -> None:
    one = sequence(Staircase())
    forward(one, 0, 1, 2, 3)
    result = forward(one, 1, 2, 50, 51)
    assert delta(result).token_ids == (1, 2)
    assert Staircase().legal_prefix(one.generated) == 3


def test_a_draft_is_cut_before_its_first_illegal_token() -> None:
    one = sequence(Staircase())
    forward(one, 0, 1, 50, 3)
    assert one.canvas is not None
    assert one.canvas.token_ids.tolist() == [1]


def test_thinking_is_closed_at_its_budget() -> None:
    params = decode_params("ar", canvas_len=1, max_new_tokens=20)
    one = Sequence(
        Request("x", PROMPT, params, think=ThinkBudget((90, 91), max_tokens=2)), make_decoder(params.decoder)
    )
    assert delta(forward(one, 10)).token_ids == (10,)
    closing = delta(forward(one, 11))
    assert (closing.token_ids, closing.num_forced) == ((11, 90, 91), 2)
    assert not one.is_thinking


def test_the_tokens_that_close_a_thought_keep_the_token_limit() -> None:
    params = decode_params("ar", canvas_len=1, max_new_tokens=3)
    think = ThinkBudget((90, 91), max_tokens=2)
    one = Sequence(Request("x", PROMPT, params, think=think), make_decoder(params.decoder))
    forward(one, 10)
    last = delta(forward(one, 11))
    assert (last.token_ids, last.finish) == ((11, 90), FinishReason.LENGTH)


def test_accepted_tokens_that_a_thinking_budget_cuts_off_keep_no_kv() -> None:
    params = decode_params("verify", canvas_len=4, max_new_tokens=20)
    think = ThinkBudget((90, 91), max_tokens=2)
    one = Sequence(Request("x", PROMPT, params, think=think), make_decoder(params.decoder))
    forward(one, 10, 11, 12, 13)
    forward(one, 11, 12, 13, 14)
    assert one.generated == [10, 11, 90, 91]
    assert one.kv_len == len(PROMPT) + 2  # the rows of 12 and 13 ran where 90 and 91 are now


def test_a_thought_that_is_cut_off_ends_with_a_closing_line() -> None:
    params = decode_params("ar", canvas_len=1, max_new_tokens=20, stop_ids=(99,))

    def thinking() -> Sequence:
        think = ThinkBudget((90,), max_tokens=2, cut_ids=(70, 71))
        return Sequence(Request("x", PROMPT, params, think=think), make_decoder(params.decoder))

    cut = thinking()
    assert delta(forward(cut, 10)).token_ids == (10,)
    assert delta(forward(cut, 11)).token_ids == (11, 70, 71, 90)
    ended = thinking()
    assert delta(forward(ended, 99)).token_ids == (90,)


def test_logprobs_belong_to_the_row_that_proposed_the_committed_token() -> None:
    one = sequence(name="ar", logprobs=1, canvas_len=1)
    first = delta(forward(one, 10, logprobs=[TokenLogprob(10, -0.5, ((10, -0.5),))]))
    assert first.logprobs == (TokenLogprob(10, -0.5, ((10, -0.5),)),)


def test_a_forced_token_has_probability_1_whatever_was_drafted_at_its_position() -> None:
    """The sixth token of the toy grammar is determined."""
    one = sequence(Staircase(), logprobs=0)
    forward(one, 0, 1, 2, 50)
    forward(one, 1, 2, 3)
    drafted = [TokenLogprob(token, -0.5) for token in (4, 50, 51, 52)]
    last = delta(forward(one, 4, 50, 51, 52, logprobs=drafted))
    assert last.token_ids == (4, 12)
    assert last.logprobs == (TokenLogprob(4, -0.5), TokenLogprob(12, 0.0))


def test_an_end_that_a_grammar_determines_has_no_logprob_of_a_drafted_stop_token() -> None:
    one = sequence(Staircase(length=1), logprobs=0)
    drafted = [TokenLogprob(token, -0.5) for token in (0, STOP, 51, 52)]
    last = delta(forward(one, 0, STOP, 51, 52, logprobs=drafted))
    assert (last.token_ids, last.finish) == ((0,), FinishReason.STOP)
    assert last.logprobs == (TokenLogprob(0, -0.5),)


def test_frames_show_the_canvas_after_the_step() -> None:
    params = decode_params("verify", canvas_len=4, max_new_tokens=20)
    one = Sequence(Request("x", PROMPT, params, wants_frames=True), make_decoder(params.decoder))
    (frame,) = (event for event in forward(one, 10, 11, 12, 13).events if isinstance(event, Frame))
    assert frame.token_ids == (11, 12, 13)
