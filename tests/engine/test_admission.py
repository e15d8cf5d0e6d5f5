"""What the engine refuses before it queues a request, and requests that block no other."""

from __future__ import annotations

import pytest

from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request, ScoreRequest
from quicksilver.engine.admission import TenantLoad
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Scored
from quicksilver.engine.shared_steps import ACTIVE_S, ActiveTenants
from quicksilver.errors import ContextTooLong, EngineUnavailable, InvalidGrammar, InvalidRequest
from tests.support.tiny import answers, decode_params, finish_all, generate, tiny_engine

PROMPT = tuple(range(5, 40))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"canvas_len": 0}, "canvas_len"),
        ({"canvas_len": 64}, "canvas_len"),
        ({"logit_bias": {97: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_numbers_that_cannot_be_honoured_are_refused_by_name(change: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tiny_engine().add(Request("x", (1,), decode_params("verify", **change)))
    assert refused.value.param == param


def test_what_can_never_fit_is_refused_at_once() -> None:
    with pytest.raises(ContextTooLong, match="context of 512"):
        tiny_engine().add(Request("x", (1,) * 500, decode_params("ar", max_new_tokens=20)))
    with pytest.raises(ContextTooLong, match="more KV memory"):
        tiny_engine(EngineConfig(num_pages=2)).add(Request("x", (1,) * 30, decode_params("ar", max_new_tokens=20)))
    with pytest.raises(InvalidRequest, match="empty"):
        tiny_engine().add(Request("x", (), decode_params("ar")))
    with pytest.raises(InvalidRequest, match=r"0\.\.96"):
        tiny_engine().add(Request("x", (97,), decode_params("ar")))
    with pytest.raises(InvalidGrammar):
        tiny_engine().add(Request("x", (1,), constraint=ConstraintSpec("{}")))


def test_continuations_that_exceed_the_pages_together_are_refused() -> None:
    """Each of them alone fits; together they need more KV tokens than there are."""
    engine = tiny_engine(EngineConfig(num_pages=16, max_rows=96))
    with pytest.raises(InvalidRequest, match="at most 221") as refused:
        engine.add_score(ScoreRequest("s", PROMPT, tuple((i,) * 60 for i in range(8))))
    assert (refused.value.param, refused.value.status) == ("continuations", 400)
    assert not engine.has_work


def test_continuations_that_exceed_the_row_limit_are_refused() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=96, max_score_rows=100))
    with pytest.raises(InvalidRequest, match="at most 100"):
        engine.add_score(ScoreRequest("s", PROMPT, tuple((i,) * 30 for i in range(4))))
    engine.add_score(ScoreRequest("s", PROMPT, tuple((i,) * 25 for i in range(4))))


def test_a_large_score_leaves_room_for_others_in_every_step() -> None:
    """Its rows are spread over forwards; a neighbour commits a token in each of them."""
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=64))
    params = decode_params("ar", canvas_len=1, max_new_tokens=12)
    wanted = generate(tiny_engine(), PROMPT, params)
    engine.add_score(ScoreRequest("s", PROMPT, tuple((i,) * 20 for i in range(40))))
    engine.add(Request("chat", PROMPT, params))
    tokens, steps, rows = list[int](), 0, list[int]()
    while len(tokens) < 12:
        before = engine.stats().rows
        for event in engine.step():
            tokens += event.token_ids if isinstance(event, Delta) else ()
        rows.append(engine.stats().rows - before)
        steps += 1
    assert tokens == wanted
    assert steps <= 16
    assert max(rows) <= 64


def test_a_request_that_no_check_caught_fails_instead_of_blocking_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.engine.engine.check_request", lambda *_: None)
    engine = tiny_engine(EngineConfig(num_pages=4, max_rows=96))
    params = decode_params("ar", canvas_len=1, max_new_tokens=3)
    engine.add(Request("giant", (1,) * 400, params))
    engine.add(Request("chat", (1, 2, 3), params))
    deltas = finish_all(engine)
    assert deltas["giant"][-1].finish is FinishReason.ERROR
    assert (deltas["giant"][-1].error or "").startswith("context_length_exceeded")
    assert len(answers(deltas)["chat"]) == 3


def test_an_aborted_score_frees_its_pages_and_yields_no_result() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=32))
    engine.add_score(ScoreRequest("s", PROMPT, tuple((i,) * 12 for i in range(20))))
    engine.step()
    engine.step()
    assert engine.pool.num_free < 64
    engine.abort("s")
    events = engine.step()
    assert [event.finish for event in events if isinstance(event, Delta)] == [FinishReason.ABORT]
    assert not any(isinstance(event, Scored) for event in events)
    assert (engine.has_work, engine.pool.num_free, engine.stats().aborts) == (False, 64, 1)


PARAMS = decode_params("ar", max_new_tokens=2)


def prompt(number: int, tenant: str, num_tokens: int = 100) -> Request:
    return Request(f"{tenant}{number}", (number, *(i % 97 for i in range(1, num_tokens))), PARAMS, tenant)


def test_a_tenant_alone_is_never_refused() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    for number in range(5):
        engine.add(prompt(number, "a"))
    assert len(finish_all(engine)) == 5


def test_a_tenant_with_much_open_work_is_refused_beside_another() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    engine.add(prompt(0, "b", 5))
    for number in range(2):
        engine.add(prompt(number, "a"))
    with pytest.raises(EngineUnavailable) as refused:
        engine.add(prompt(2, "a"))
    assert refused.value.retry_after_s > 1
    engine.add(prompt(1, "b", 5))
    assert len(finish_all(engine)) == 4
    engine.add(prompt(3, "a"))


def test_rows_of_scoring_count() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=32, max_tenant_rows=150))
    engine.add(prompt(0, "b", 5))
    engine.add_score(ScoreRequest("s", (1, 2, 3), tuple((i, *range(1, 20)) for i in range(1, 12)), "a"))
    with pytest.raises(EngineUnavailable):
        engine.add(prompt(1, "a", 5))


def test_another_tenant_counts_for_a_while() -> None:
    now = [0.0]
    tenants = ActiveTenants(lambda: now[0])
    load = TenantLoad(10, tenants)
    engine = tiny_engine()
    sequences = [engine.prepare(prompt(0, "a")).sequence]
    tenants.note("b")
    now[0] = ACTIVE_S - 1
    with pytest.raises(EngineUnavailable):
        load.check("a", sequences)
    now[0] = ACTIVE_S + 1
    load.check("a", sequences)
