"""Scoring in one and in several passes: equal to the causal likelihood, cut to the row limit, counted in full."""

from __future__ import annotations

import pytest

from quicksilver.core import Request, ScoreRequest, Scores
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.score import score_continuations, score_next
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.errors import InvalidRequest
from tests.support.tiny import decode_params, tiny_engine, tiny_model, uncached

PROMPT = tuple(range(5, 40))
SHORT = ((1, 2, 3), (4,), (5, 6, 7, 8, 9), (10, 11))
LONG = tuple((7 * i) % 97 for i in range(75))


def scored(engine: Engine) -> Scores:
    found = []
    while engine.has_work:
        found += [event for event in engine.step() if isinstance(event, Scored)]
    (only,) = found
    return only.scores


def causal_logprobs(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
    predict, text, found = uncached(tiny_model()), list(prompt), []
    for token in tokens:
        found.append(float(predict(text, Tail())[0].log_softmax(-1)[token]))
        text.append(token)
    return found


@pytest.mark.parametrize("max_rows", [8, 24, 96])
@pytest.mark.parametrize(
    "continuations", [SHORT, (LONG,), (*SHORT, LONG, (3,), LONG[::-1])], ids=["short", "long", "all"]
)
def test_scores_equal_the_causal_likelihood_at_any_row_budget(
    continuations: tuple[tuple[int, ...], ...], max_rows: int
) -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=max_rows))
    engine.add_score(ScoreRequest("s", PROMPT, continuations))
    for tokens, logprobs in zip(continuations, scored(engine).logprobs, strict=True):
        assert logprobs == pytest.approx(causal_logprobs(PROMPT, tokens), abs=1e-4)
    assert engine.pool.num_free == 64


def test_no_pass_has_more_rows_than_the_limit() -> None:
    for max_rows in (1, 4, 16):
        passes = score_continuations((*SHORT, LONG), max_rows).passes
        assert max(len(one.tail.token_ids) for one in passes) <= max_rows
        assert sum(len(one.tail.targets) for one in passes) == sum(map(len, (*SHORT, LONG)))


def test_a_preempted_score_starts_its_pass_again() -> None:
    """Too few pages for both: the younger one loses its pages in the middle of a long continuation."""
    params = decode_params("ar", canvas_len=1, max_new_tokens=60)
    engine = tiny_engine(EngineConfig(num_pages=9, max_rows=16))
    engine.add(Request("old", PROMPT[::-1], params))
    engine.add_score(ScoreRequest("s", PROMPT, (LONG, (3, 4))))
    scores = scored(engine)
    assert engine.scheduler.num_preemptions > 0
    assert scores.logprobs[0] == pytest.approx(causal_logprobs(PROMPT, LONG), abs=1e-4)
    assert scores.logprobs[1] == pytest.approx(causal_logprobs(PROMPT, (3, 4)), abs=1e-4)
    assert engine.pool.num_free == 9


def test_pages_of_a_scored_text_may_be_shared_and_stay_right() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=24))
    for _ in range(2):
        engine.add_score(ScoreRequest("s", PROMPT, (LONG, LONG[::-1])))
        for tokens, logprobs in zip((LONG, LONG[::-1]), scored(engine).logprobs, strict=True):
            assert logprobs == pytest.approx(causal_logprobs(PROMPT, tokens), abs=1e-4)
    engine.add_score(ScoreRequest("t", (*PROMPT, *LONG), ((1, 2),)))
    scores = scored(engine)
    assert scores.usage.cached_tokens > 64
    assert scores.logprobs[0] == pytest.approx(causal_logprobs((*PROMPT, *LONG), (1, 2)), abs=1e-4)


def test_usage_counts_the_tokens_and_rows_of_every_continuation() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=24))
    engine.add_score(ScoreRequest("s", PROMPT, (*SHORT, LONG)))
    usage = scored(engine).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), sum(map(len, SHORT)) + len(LONG))
    assert usage.rows == engine.stats().rows
    assert usage.rows >= len(PROMPT) + sum(len(tokens) - 1 for tokens in (*SHORT, LONG))
    assert usage.forwards == engine.stats().steps > 4


NEXT = ((1, 2, 3), (4,), (9, 1), (2, 2))


@pytest.mark.parametrize("max_rows", [10, 24, 96])
def test_probabilities_after_a_branch_equal_those_after_the_whole_text(max_rows: int) -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=max_rows))
    engine.add_score(ScoreRequest("s", PROMPT, SHORT, next_tokens=NEXT))
    together = scored(engine)
    assert together.usage.rows <= len(PROMPT) + sum(map(len, SHORT)) + 3
    for tokens, asked, logprobs in zip(SHORT, NEXT, together.logprobs, strict=True):
        engine.add_score(ScoreRequest("t", (*PROMPT, *tokens), tuple((token,) for token in asked)))
        apart = [logprob for (logprob,) in scored(engine).logprobs]
        assert logprobs == pytest.approx(apart, abs=1e-5)


# Branches of two forms in turn, one branch that begins like neither, and two that are equal.
FORMS = (
    (1, 2, 3, 4, 9),
    (5, 6, 7, 8, 9, 1),
    (1, 2, 3, 4, 8),
    (5, 6, 7, 8, 3),
    (9, 9),
    (1, 2, 3, 7, 7),
    (5, 6, 7, 8, 3),
)


@pytest.mark.parametrize("num_prompt", range(14, 18))
def test_starts_that_some_branches_have_in_common_are_computed_once(num_prompt: int) -> None:
    """The shared tokens end before, at and after the end of a page, and no pass changes pages that others may read."""
    engine, prompt = tiny_engine(EngineConfig(num_pages=64, max_rows=16)), PROMPT[:num_prompt]
    asked = tuple((i, i + 1) for i in range(len(FORMS)))
    for repeat in range(2):
        engine.add_score(ScoreRequest("s", prompt, FORMS, next_tokens=asked))
        scores = scored(engine)
        for tokens, after, logprobs in zip(FORMS, asked, scores.logprobs, strict=True):
            expected = [causal_logprobs((*prompt, *tokens), (token,))[0] for token in after]
            assert logprobs == pytest.approx(expected, abs=1e-4)
        if not repeat:
            assert scores.usage.rows < num_prompt + sum(map(len, FORMS)) - 6
    assert engine.pool.num_free == 64


def test_a_request_that_is_aborted_between_two_passes_frees_its_pages() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=16))
    engine.add_score(ScoreRequest("s", PROMPT[:12], FORMS, next_tokens=((4,),) * 7))
    for _ in range(2):
        engine.step()
    assert engine.has_work
    assert engine.pool.num_free < 64
    engine.abort("s")
    assert (engine.pool.num_free, engine.scheduler.has_work) == (64, False)


def test_the_passes_of_branches_have_the_least_rows() -> None:
    scorer = score_next(FORMS, ((4,),) * 7, 12)
    assert [(each.num_kept, each.added) for each in scorer.passes] == [(0, (1, 2, 3)), (0, (5, 6, 7, 8)), (0, ())]
    assert [len(each.tail.token_ids) for each in scorer.passes] == [6, 4, 2]
    # A further pass would cost more than the rows that it saves.
    (only,) = score_next(FORMS, ((4,),) * 7, 128).passes
    assert len(only.tail.token_ids) == sum(map(len, FORMS))


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_request_that_runs_alone_has_the_whole_row_budget(is_busy: bool) -> None:
    engine, continuations = tiny_engine(EngineConfig(num_pages=64, max_rows=16)), [(i, 2, 3) for i in range(10)]
    if is_busy:
        engine.add(Request("x", PROMPT, decode_params("ar", canvas_len=1, max_new_tokens=1)))
    engine.add_score(ScoreRequest("s", PROMPT[:1], tuple(continuations), next_tokens=((4,),) * 10))
    # Five of three rows fit beside one context row, two into half of the budget.
    assert scored(engine).usage.forwards == (5 if is_busy else 2)


def test_alternatives_and_ranks_of_scored_tokens() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=24))
    engine.add_score(ScoreRequest("s", PROMPT[:1], (PROMPT[1:], (3,)), num_top=3))
    scores, predict = scored(engine), uncached(tiny_model())
    assert [tuple(entry.logprob for entry in part) for part in scores.details] == list(scores.logprobs)
    for i, entry in enumerate(scores.details[0]):
        log_p = predict(PROMPT[: i + 1], Tail())[0].log_softmax(-1)
        assert entry.token_id == PROMPT[i + 1]
        assert entry.rank == int((log_p > log_p[entry.token_id]).sum()) + 1
        assert [token for token, _ in entry.top] == log_p.topk(3).indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(log_p.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("next_tokens", "match"),
    [(((1,),), "at least one"), (((1,), ()), "at least one"), (((1,), (97,)), "0..96")],
    ids=["too few", "empty", "no such token"],
)
def test_next_tokens_are_checked(next_tokens: tuple[tuple[int, ...], ...], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        tiny_engine().add_score(ScoreRequest("s", PROMPT, ((1,), (2,)), next_tokens=next_tokens))


def test_a_branch_that_exceeds_a_forward_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="part of the prompt"):
        tiny_engine(EngineConfig(num_pages=64, max_rows=24)).add_score(
            ScoreRequest("s", PROMPT, (LONG,), next_tokens=((1,),))
        )
