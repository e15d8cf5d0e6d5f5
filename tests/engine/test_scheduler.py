"""The scheduler: order of admission, the row budget, preemption, and requests that do not fit now or never."""

from __future__ import annotations

from quicksilver.backends.sequence import Sequence
from quicksilver.core import DecoderName, DecoderParams, Request
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.pages import PagePool
from quicksilver.engine.scheduler import LOOK_AHEAD, MAX_OVERTAKEN, Scheduler
from tests.support.tiny import decode_params

PAGE = 16


def scheduler(num_pages: int, **settings: int) -> Scheduler:
    return Scheduler(EngineConfig(page_size=PAGE, num_pages=num_pages, **settings), PagePool(num_pages))


def sequence(name: str, num_tokens: int, tenant: str = "") -> Sequence:
    """A request for one token after a prompt that no other request shares."""
    prompt = tuple(hash((name, i)) % 97 for i in range(num_tokens))
    request = Request(name, prompt, decode_params("ar", canvas_len=1, max_new_tokens=1), tenant=tenant)
    return Sequence(request, make_decoder(DecoderParams(DecoderName.AR, canvas_len=1)))


def planned(scheduler: Scheduler) -> list[str]:
    return [work.sequence.id for work in scheduler.plan()]


def finish(scheduler: Scheduler, name: str) -> None:
    scheduler.remove(next(sequence for sequence in scheduler.running if sequence.id == name))


def test_a_request_that_does_not_fit_now_lets_others_pass() -> None:
    plan = scheduler(num_pages=8)
    plan.add(sequence("first", 4 * PAGE))
    assert planned(plan) == ["first"]
    plan.add(sequence("large", 6 * PAGE))
    plan.add(sequence("small", PAGE - 1))
    assert "small" in planned(plan)
    assert plan.num_waiting == 1
    finish(plan, "first")
    finish(plan, "small")
    assert planned(plan) == ["large"]


def test_requests_of_one_tenant_and_of_several_may_pass() -> None:
    for tenants in (("a", "a", "a"), ("a", "b", "c")):
        plan = scheduler(num_pages=8)
        plan.add(sequence("first", 4 * PAGE, tenants[0]))
        plan.plan()
        plan.add(sequence("large", 6 * PAGE, tenants[1]))
        plan.add(sequence("small", PAGE - 1, tenants[2]))
        assert "small" in planned(plan)


def test_a_request_is_overtaken_a_bounded_number_of_times() -> None:
    plan = scheduler(num_pages=8)
    plan.add(sequence("first", 4 * PAGE))
    plan.plan()
    plan.add(sequence("large", 6 * PAGE))
    for i in range(MAX_OVERTAKEN):
        plan.add(sequence(f"small {i}", PAGE - 1))
        assert f"small {i}" in planned(plan)
        finish(plan, f"small {i}")
    plan.add(sequence("one more", PAGE - 1))
    assert "one more" not in planned(plan)
    finish(plan, "first")
    assert planned(plan) == ["large", "one more"]


def test_the_look_past_the_head_of_the_queue_is_bounded() -> None:
    plan = scheduler(num_pages=8)
    plan.add(sequence("first", 4 * PAGE))
    plan.plan()
    for i in range(LOOK_AHEAD):
        plan.add(sequence(f"large {i}", 6 * PAGE))
    plan.add(sequence("small", PAGE - 1))
    assert "small" not in planned(plan)


def test_tenants_are_admitted_in_turn() -> None:
    plan = scheduler(num_pages=64, max_running=1)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        plan.add(sequence(name, PAGE, tenant))
    order = []
    while plan.has_work:
        order += planned(plan)
        finish(plan, order[-1])
    assert order == ["a1", "b1", "a2"]


def test_prompts_are_cut_to_the_row_budget() -> None:
    plan = scheduler(num_pages=64, max_rows=40)
    plan.add(sequence("long", 100))
    lengths = []
    for _ in range(3):
        (work,) = plan.plan()
        lengths.append(work.num_rows)
        work.sequence.kv_len = work.end
    assert lengths == [40, 40, 20]
    assert work.tail is not None


def test_the_youngest_is_preempted_and_the_oldest_goes_on() -> None:
    plan = scheduler(num_pages=4)
    plan.add(sequence("old", PAGE))
    plan.add(sequence("young", 2 * PAGE + 1))
    assert planned(plan) == ["old", "young"]
    old, young = plan.running
    young.kv_len = 2 * PAGE
    old.kv_len, old.tokens = PAGE, [*old.tokens, 1]
    assert planned(plan) == ["old"]
    assert plan.num_preemptions == 1
    assert (young.pages, young.kv_len) == ([], 0)


def test_no_request_passes_a_preempted_one() -> None:
    plan = scheduler(num_pages=6)
    plan.add(sequence("old", PAGE))
    plan.add(sequence("young", 4 * PAGE + 1))
    plan.plan()
    old, young = plan.running
    old.kv_len, old.tokens = PAGE, [*old.tokens, 1]
    young.kv_len = 4 * PAGE
    plan.add(sequence("new", PAGE - 1))
    assert planned(plan) == ["old"]
    assert plan.num_preemptions == 1
    finish(plan, "old")
    assert planned(plan) == ["young", "new"]


def test_rewinding_returns_the_pages_after_the_prompt() -> None:
    plan = scheduler(num_pages=8)
    one = sequence("x", 2 * PAGE)
    plan.add(one)
    plan.plan()
    one.tokens += range(PAGE)
    one.kv_len = 3 * PAGE - 1
    plan.rewind(one, 2 * PAGE)
    assert (len(one.tokens), len(one.pages), one.kv_len) == (2 * PAGE, 1, PAGE)
    assert plan.pool.num_free == 7


def test_a_request_larger_than_the_pool_is_found_when_nothing_runs() -> None:
    plan = scheduler(num_pages=2)
    giant = sequence("giant", 10 * PAGE)
    plan.add(giant)
    assert plan.plan() == []
    assert plan.impossible() is giant
