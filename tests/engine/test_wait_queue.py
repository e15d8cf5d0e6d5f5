"""Order of admission between classes and tenants, and the estimate of the start of a request."""

from __future__ import annotations

from quicksilver.backends.base import Sequence
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.wait_queue import BATCH_EVERY, LOOK_AHEAD, MAX_DEBT, WaitQueue

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
