"""What the engine refuses before it queues a request, and the order in which queued requests start."""

from __future__ import annotations

import pytest

from quicksilver.backends.base import Sequence
from quicksilver.core import (
    ConstraintSpec,
    DecodeParams,
    DecoderName,
    DecoderParams,
    Delta,
    FinishReason,
    Request,
    ScoreRequest,
)
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.admission import (
    ACTIVE_S,
    BATCH_EVERY,
    LOOK_AHEAD,
    MAX_DEBT,
    ActiveTenants,
    TenantLoad,
    WaitQueue,
)
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Scored
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


AR = DecoderParams(DecoderName.AR, canvas_len=1)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sequence(name: str, *, is_batch: bool = False, start_within_s: float = 0.0, num_tokens: int = 10) -> Sequence:
    """The tenant is the first letter of the name."""
    request = Request(
        name,
        tuple(range(num_tokens)),
        DecodeParams(decoder=AR),
        name[0],
        is_batch=is_batch,
        start_within_s=start_within_s,
    )
    return Sequence(request, make_decoder(AR))


def admitted(queue: WaitQueue, count: int = 100) -> list[str]:
    """The names of the next requests, each of which ends before the next one is admitted."""
    names = []
    while len(queue) and len(names) < count:
        one = next(queue.candidates())
        queue.admit(one, len(one.tokens))
        queue.leave(one.request.tenant)
        names.append(one.id)
    return names


def test_equal_tenants_take_turns_and_their_requests_keep_their_order() -> None:
    queue = WaitQueue()
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.add(sequence(name))
    assert admitted(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_tenants_get_equal_tokens_not_equal_requests() -> None:
    queue = WaitQueue()
    for i in range(40):
        queue.add(sequence(f"a{i}", num_tokens=100))
        queue.add(sequence(f"b{i}", num_tokens=25))
    names = admitted(queue, 25)
    assert 18 <= sum(name[0] == "b" for name in names) <= 21


def test_answers_are_charged_to_their_tenant() -> None:
    queue = WaitQueue()
    for name in ("a1", "a2", "b1", "b2"):
        queue.add(sequence(name))
    first = next(queue.candidates())
    queue.admit(first, 10)
    queue.charge("a", 500)
    assert admitted(queue) == ["b1", "b2", "a2"]


def test_idle_time_earns_no_credit_and_debt_is_bounded() -> None:
    queue = WaitQueue()
    queue.add(sequence("a1"))
    queue.charge("a", 10 * MAX_DEBT)
    queue.add(sequence("b1"))
    # A new tenant starts level with the least served one.
    queue.add(sequence("a2"))
    assert admitted(queue, 2) == ["a1", "b1"]
    queue.add(sequence("c1"))
    queue.charge("c", 10 * MAX_DEBT)
    queue.drop(next(one for one in queue if one.id == "c1"))
    for name in ("b2", "c2"):
        queue.add(sequence(name))
    # The earlier work of the third tenant counts, but not all of it.
    queue.charge("b", MAX_DEBT - 1000)
    queue.charge("a", 2 * MAX_DEBT)
    assert next(queue.candidates()).id == "b2"
    queue.charge("b", 2000)
    assert next(queue.candidates()).id == "c2"


def test_interactive_requests_come_before_batch_requests_of_every_tenant() -> None:
    queue = WaitQueue()
    for name in ("a1", "b1"):
        queue.add(sequence(name, is_batch=True))
    for name in ("a2", "c1", "a3"):
        queue.add(sequence(name))
    assert admitted(queue) == ["a2", "c1", "a3", "b1", "a1"]


def test_batch_requests_progress_while_interactive_ones_wait() -> None:
    queue = WaitQueue()
    for i in range(3):
        queue.add(sequence(f"b{i}", is_batch=True))
    for i in range(50):
        queue.add(sequence(f"a{i}"))
    names = admitted(queue, 2 * BATCH_EVERY)
    assert [i for i, name in enumerate(names) if name[0] == "b"] == [BATCH_EVERY - 1, 2 * BATCH_EVERY - 1]


def test_a_preempted_request_is_the_next_one_of_its_class() -> None:
    queue = WaitQueue()
    for name in ("a1", "b1", "a2"):
        queue.add(sequence(name))
    queue.add(batch := sequence("c1", is_batch=True))
    queue.admit(batch, 10)
    first = next(queue.candidates())
    queue.admit(first, 10)
    queue.charge("a", 1000)
    queue.put_back(first)
    queue.put_back(batch)
    assert admitted(queue) == ["a1", "b1", "a2", "c1"]


def test_candidates_are_bounded() -> None:
    queue = WaitQueue()
    for i in range(3 * LOOK_AHEAD):
        queue.add(sequence(f"a{i}"))
    assert len(list(queue.candidates())) == LOOK_AHEAD


def test_start_is_estimated_from_admissions_since_the_queue_was_empty() -> None:
    clock = Clock()
    queue = WaitQueue(clock)
    assert queue.start_s("a") == 0
    for i in range(20):
        queue.add(sequence(f"a{i}"))
    assert queue.start_s("a") == 0
    for _ in range(9):
        clock.now += 1
        admitted(queue, 1)
    # 10 admissions in 10 s, counting the one that is due; 11 requests wait.
    clock.now += 1
    assert queue.start_s("a") == 11
    # Another tenant waits for its first turn only.
    assert queue.start_s("b") == 1


def test_estimate_follows_the_last_part_of_a_long_backlog() -> None:
    clock = Clock()
    queue = WaitQueue(clock)
    for i in range(400):
        queue.add(sequence(f"a{i}"))
    for _ in range(100):
        clock.now += 0.1
        admitted(queue, 1)
        queue.start_s("a")
    fast_s = queue.start_s("a")
    for _ in range(60):
        clock.now += 2
        admitted(queue, 1)
        queue.start_s("a")
    assert fast_s < 35
    assert queue.start_s("a") > 300


def test_overdue_requests_are_found_unless_they_have_run_or_have_no_limit() -> None:
    clock = Clock()
    queue = WaitQueue(clock)
    for name, limit_s in (("a1", 5.0), ("a2", 0.0), ("a3", 50.0)):
        queue.add(sequence(name, start_within_s=limit_s))
    queue.add(preempted := sequence("a4", start_within_s=5.0))
    queue.admit(preempted, 10)
    preempted.has_run = True
    queue.put_back(preempted)
    assert queue.overdue() == []
    clock.now += 6
    assert [one.id for one in queue.overdue()] == ["a1"]
    # Looked for at intervals.
    assert queue.overdue() == []
