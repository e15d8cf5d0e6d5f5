"""Limits of a forward while several tenants are active: rows by measured time, and long prompts that wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quicksilver.backends.base import Sequence, Work
from quicksilver.core import DecoderName, DecoderParams, Request
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.score import score_continuations
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.pages import PagePool
from quicksilver.engine.scheduler import Scheduler
from quicksilver.engine.shared_steps import ACTIVE_S, MIN_ROWS, ActiveTenants
from tests.support.tiny import decode_params

MAX_ROWS = 64


class Time:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sequence(name: str, num_tokens: int, tenant: str) -> Sequence:
    prompt = tuple(hash((name, i)) % 97 for i in range(num_tokens))
    request = Request(name, prompt, decode_params("ar", canvas_len=1, max_new_tokens=1), tenant=tenant)
    return Sequence(request, make_decoder(DecoderParams(DecoderName.AR, canvas_len=1)))


def scheduler(clock: Time, shared_step_ms: float = 20.0) -> Scheduler:
    config = EngineConfig(num_pages=512, max_rows=MAX_ROWS, shared_step_ms=shared_step_ms)
    return Scheduler(config, PagePool(512), wall_clock=clock)


def step(plan: Scheduler, clock: Time, seconds_of: Callable[[int], float]) -> dict[str, int]:
    """Rows of every sequence in one step, whose chunks are then cached."""
    works = plan.plan()
    clock.now += seconds_of(sum(work.num_rows for work in works))
    for work in works:
        work.sequence.kv_len = work.end
        if is_whole(work):
            plan.remove(work.sequence)
    plan.finish(works)
    return {work.sequence.id: work.num_rows for work in works}


def is_whole(work: Work) -> bool:
    return work.tail is not None


def one_ms_per_row(rows: int) -> float:
    return 0.001 * rows


def test_rows_follow_the_measured_time_while_two_tenants_are_active() -> None:
    clock = Time()
    plan = scheduler(clock)
    plan.add(sequence("long", 2000, "a"))
    assert step(plan, clock, one_ms_per_row) == {"long": MAX_ROWS}, "a tenant alone has the whole budget"
    plan.tenants.note("b")
    assert step(plan, clock, one_ms_per_row) == {"long": 20}
    for _ in range(20):
        step(plan, clock, lambda rows: 0.004 * rows)
    assert step(plan, clock, one_ms_per_row) == {"long": MIN_ROWS}, "never fewer"
    clock.now += ACTIVE_S
    assert step(plan, clock, one_ms_per_row) == {"long": MAX_ROWS}
    clock.now += 10 * ACTIVE_S
    plan.tenants.note("b")
    assert step(plan, clock, one_ms_per_row)["long"] < MAX_ROWS, "a running request keeps its tenant active"


def test_a_fixed_part_of_the_time_is_part_of_the_limit() -> None:
    clock = Time()
    plan = scheduler(clock)
    plan.add(sequence("long", 4000, "a"))
    plan.tenants.note("b")
    for _ in range(50):
        rows = step(plan, clock, lambda rows: 0.006 + 0.0005 * rows)["long"]
        plan.tenants.note("b")
        plan.tenants.note("a")
    assert 26 <= rows <= 29, "6 ms and 28 rows of 0.5 ms are 20 ms"


def test_a_long_prompt_waits_for_the_start_of_a_short_one_but_not_twice() -> None:
    clock = Time()
    plan = scheduler(clock)
    plan.add(sequence("long", 2000, "a"))
    step(plan, clock, one_ms_per_row)
    plan.add(sequence("short", 10, "b"))
    assert step(plan, clock, one_ms_per_row) == {"short": 10}
    plan.add(sequence("other", 10, "b"))
    found = step(plan, clock, one_ms_per_row)
    assert found["long"] > 0, "it waited in the step before"
    assert found["other"] == 10


@pytest.mark.parametrize(("tenant", "shared_step_ms"), [("a", 20.0), ("b", 0.0)])
def test_nothing_waits_for_its_own_tenant_or_without_a_limit(tenant: str, shared_step_ms: float) -> None:
    clock = Time()
    plan = scheduler(clock, shared_step_ms)
    plan.add(sequence("long", 2000, "a"))
    step(plan, clock, one_ms_per_row)
    plan.add(sequence("short", 10, tenant))
    found = step(plan, clock, one_ms_per_row)
    assert found["short"] == 10
    assert found["long"] > MIN_ROWS


def test_passes_of_a_scoring_request_are_short_while_tenants_share_the_engine() -> None:
    clock = Time()
    plan = scheduler(clock)
    assert plan.score_pass_rows == MAX_ROWS - 1
    plan.add(sequence("long", 2000, "a"))
    step(plan, clock, one_ms_per_row)
    assert plan.score_pass_rows == MAX_ROWS // 2
    plan.tenants.note("b")
    step(plan, clock, one_ms_per_row)
    assert plan.score_pass_rows == 20


def test_tenants_are_several_while_the_last_two_are_recent() -> None:
    clock = Time()
    tenants = ActiveTenants(clock)
    tenants.note("a")
    assert not tenants.are_several
    clock.now = ACTIVE_S - 1
    tenants.note("b")
    assert tenants.are_several
    assert tenants.has_others("a")
    clock.now = ACTIVE_S + 1
    assert not tenants.are_several
    assert tenants.has_others("a")
    assert not tenants.has_others("b")


def scoring(name: str, num_passes: int, pass_rows: int, tenant: str) -> Sequence:
    continuations = [tuple(range(1, pass_rows + 2)) for _ in range(num_passes)]
    request = Request(name, (5, 6, 7), decode_params("ar", canvas_len=1, max_new_tokens=1), tenant=tenant)
    scorer = score_continuations(continuations, pass_rows)
    made = Sequence(request, scorer)
    made.tokens += scorer.passes[0].added
    return made


def test_scoring_requests_and_prompts_take_turns_within_the_limit() -> None:
    clock = Time()
    plan = scheduler(clock)
    plan.tenants.note("b")
    for name in ("first", "second", "third"):
        plan.add(scoring(name, 40, 15, "a"))
    plan.add(sequence("long", 2000, "a"))
    seen: dict[str, int] = {}
    for _ in range(24):
        works = plan.plan()
        clock.now += 0.001 * sum(work.num_rows for work in works)
        plan.finish(works)
        assert sum(work.num_rows for work in works) <= MAX_ROWS // 2 or not seen, "a pass and its context, or a chunk"
        for work in works:
            seen[work.sequence.id] = seen.get(work.sequence.id, 0) + 1
        plan.tenants.note("b")
        plan.tenants.note("a")
    assert set(seen) == {"first", "second", "third", "long"}, seen
    assert min(seen.values()) >= 3, seen


def test_a_pass_that_exceeds_the_limit_still_runs() -> None:
    clock = Time()
    plan = scheduler(clock)
    plan.add(sequence("other", 200, "b"))
    step(plan, clock, one_ms_per_row)
    plan.add(scoring("large", 2, 60, "a"))
    found = [set(step(plan, clock, one_ms_per_row)) for _ in range(6)]
    assert any("large" in names for names in found), found
