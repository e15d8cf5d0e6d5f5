"""The scheduler: order of admission, the row budget, preemption, and requests that do not fit now or never."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.base import Sequence
from quicksilver.backends.round_cost import RoundCost
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.dialect import Dialect
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.admission import LOOK_AHEAD
from quicksilver.engine.config import EngineConfig, plan_decode_rows
from quicksilver.engine.pages import PagePool
from quicksilver.engine.scheduler import MAX_OVERTAKEN, MAX_OVERTAKEN_BY_OTHERS, Scheduler
from quicksilver.engine.step_limits import MIN_CHUNK_ROWS
from quicksilver.model.families import FAMILIES
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


def test_the_youngest_is_preempted_and_the_oldest_continues() -> None:
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


@pytest.mark.parametrize(("is_published", "num_pages", "kv_len"), [(False, 2, 2 * PAGE - 2), (True, 1, PAGE)])
def test_another_text_after_the_prompt_keeps_its_pages(is_published: bool, num_pages: int, kv_len: int) -> None:
    """A page that others may read is not written again."""
    plan = scheduler(num_pages=8)
    one = sequence("x", 2 * PAGE - 2)
    plan.add(one)
    plan.plan()
    one.tokens += range(PAGE)
    one.pages += plan.pool.allocate(1) or []
    one.kv_len = 3 * PAGE - 2
    if is_published:
        plan.publish(one)
    plan.continue_with(one, 2 * PAGE - 2, (7, 8, 9))
    assert one.tokens[2 * PAGE - 2 :] == [7, 8, 9]
    assert (len(one.pages), one.kv_len, plan.pool.num_free) == (num_pages, kv_len, 8 - num_pages)


def test_a_request_larger_than_the_pool_is_found_when_nothing_runs() -> None:
    plan = scheduler(num_pages=2)
    giant = sequence("giant", 10 * PAGE)
    plan.add(giant)
    assert plan.plan() == []
    assert plan.impossible() is giant


def test_prompts_alone_have_more_rows_than_prompts_beside_decoding_requests() -> None:
    plan = scheduler(num_pages=256, max_rows=32, prompt_rows=100)
    plan.add(sequence("first", 150))
    assert [work.num_rows for work in plan.plan()] == [100]
    first = plan.running[0]
    first.kv_len = 149
    plan.add(sequence("second", 150))
    assert [work.num_rows for work in plan.plan()] == [1, 31]


def test_the_measured_times_bound_the_rows_beside_decoding_requests() -> None:
    plan = scheduler(num_pages=2048, max_rows=512, prompt_rows=8192)
    plan.canvas_length.round_cost = RoundCost({(256, False): 2.0, (512, False): 4.0})
    plan.add(sequence("first", 150))
    plan.plan()
    plan.running[0].kv_len = 149
    plan.add(sequence("second", 9000))
    # 12 ms at 1 ms per 128 rows, one row of which decodes.
    assert [work.num_rows for work in plan.plan()] == [1, 1535]
    plan.running[1].kv_len = 8192
    assert sum(work.num_rows for work in plan.plan()) == 768


def test_a_long_prompt_does_not_keep_others_from_being_admitted() -> None:
    plan = scheduler(num_pages=64, max_rows=2 * PAGE)
    plan.add(sequence("long", 40 * PAGE, "a"))
    assert planned(plan) == ["long"]
    plan.add(sequence("short", PAGE - 1, "b"))
    works = {work.sequence.id: work.num_rows for work in plan.plan()}
    assert works["short"] == PAGE - 1
    assert works["long"] == 2 * PAGE - works["short"], "the long prompt has the rest of the rows"


def test_pages_that_a_running_prompt_still_needs_are_not_given_to_others() -> None:
    plan = scheduler(num_pages=42, max_rows=2 * PAGE)
    plan.add(sequence("long", 40 * PAGE, "a"))
    assert planned(plan) == ["long"]
    plan.add(sequence("other", 4 * PAGE, "b"))
    assert planned(plan) == ["long"]
    plan.add(sequence("short", PAGE - 1, "c"))
    assert set(planned(plan)) == {"long", "short"}


def test_a_starving_request_holds_its_own_tenant_and_others_later() -> None:
    plan = scheduler(num_pages=64)
    plan.add(sequence("first", 32 * PAGE, "a"))
    plan.plan()
    starving = sequence("starving", 48 * PAGE, "a")
    starving.num_overtaken = MAX_OVERTAKEN
    plan.add(starving)
    plan.add(sequence("same tenant", PAGE - 1, "a"))
    plan.add(sequence("large", 16 * PAGE, "b"))
    plan.add(sequence("small", PAGE - 1, "b"))
    names = planned(plan)
    assert "small" in names
    assert not {"starving", "same tenant", "large"} & set(names), "others may use a quarter of the free pages"
    starving.num_overtaken = MAX_OVERTAKEN_BY_OTHERS
    plan.add(sequence("late", PAGE - 1, "c"))
    assert "late" not in planned(plan)


def batch(name: str, num_tokens: int, tenant: str = "") -> Sequence:
    one = sequence(name, num_tokens, tenant)
    one.request = replace(one.request, is_batch=True)
    return one


def test_an_interactive_request_takes_the_place_of_a_batch_request() -> None:
    plan = scheduler(num_pages=64, max_running=3)
    for i in range(3):
        plan.add(batch(f"batch {i}", PAGE))
    plan.plan()
    plan.add(sequence("first", PAGE))
    plan.add(sequence("second", PAGE))
    plan.add(sequence("third", PAGE))
    plan.plan()
    plan.plan()
    # One batch request keeps its place.
    assert [one.id for one in plan.running] == ["batch 0", "first", "second"]
    assert plan.num_preemptions == 2
    for name in ("first", "second", "batch 0"):
        finish(plan, name)
    plan.plan()
    assert {one.id for one in plan.running} == {"third", "batch 1", "batch 2"}


def test_batch_requests_lose_their_pages_first() -> None:
    plan = scheduler(num_pages=4)
    plan.add(batch("batch", 2 * PAGE + 1))
    plan.plan()
    plan.add(sequence("interactive", PAGE))
    plan.plan()
    older, younger = plan.running
    older.kv_len, younger.kv_len = 2 * PAGE, PAGE
    younger.tokens = [*younger.tokens, 1]
    while younger.canvas is not None and plan.num_preemptions == 0:
        plan.plan()
        younger.kv_len = len(younger.tokens) - 1
        younger.tokens = [*younger.tokens, *range(PAGE)]
    assert [one.id for one in plan.running] == ["interactive"]


def rows_of(scheduler: Scheduler) -> dict[str, int]:
    """Rows of each sequence in the next step, which is taken as done: context that was computed is cached."""
    works = scheduler.plan()
    for work in works:
        work.sequence.kv_len = work.end
    return {work.sequence.id: work.num_rows for work in works}


def test_a_long_context_gets_fewer_rows_while_other_requests_are_open() -> None:
    plan = scheduler(num_pages=256, max_rows=64, doubling_context=64)
    plan.add(sequence("long", 1024))
    assert [rows_of(plan)["long"] for _ in range(3)] == [64, 64, 64], "alone, a prompt has every row"
    plan.add(sequence("short", 20))
    assert rows_of(plan) == {"short": 20, "long": 11}, "44 rows are left, and each costs four"
    assert plan.running[0].kv_len == 203
    finish(plan, "short")
    assert rows_of(plan)["long"] == 15, "another request may arrive"


def test_a_long_context_gets_a_few_rows_at_least() -> None:
    plan = scheduler(num_pages=256, max_rows=64, doubling_context=1)
    for name in ("long", "other"):
        plan.add(sequence(name, 1024))
    rows_of(plan)
    rows_of(plan)
    steps = [rows_of(plan) for _ in range(4)]
    assert steps == [{"other": MIN_CHUNK_ROWS}, {"long": MIN_CHUNK_ROWS}] * 2, "each in its turn"


def test_a_new_prompt_is_not_charged_for_the_context_of_others() -> None:
    plan = scheduler(num_pages=256, max_rows=64, doubling_context=64)
    plan.add(sequence("long", 1024))
    for _ in range(8):
        rows_of(plan)
    plan.add(sequence("short", 31))
    assert rows_of(plan)["short"] == 31


def dialect_sequence(name: str, num_tokens: int, dialect: Dialect) -> Sequence:
    prompt = tuple(range(num_tokens))
    params = DecodeParams(max_new_tokens=400, decoder=dialect.default)
    return Sequence(Request(name, prompt, params), make_decoder(dialect.default, dialect), dialect=dialect)


def test_eight_random_canvases_share_a_forward() -> None:
    dialect = FAMILIES["diffusion-gemma"].dialect({"canvas_length": 256}, "")
    rows = plan_decode_rows(EngineConfig(), dialect, is_cuda=True)
    plan = scheduler(num_pages=256, decode_rows=rows)
    for i in range(8):
        plan.add(dialect_sequence(str(i), 40, dialect))
    for _ in range(8):
        rows_of(plan)
    assert rows_of(plan) == {str(i): 256 for i in range(8)}


def test_prompts_beside_many_canvases_keep_to_the_row_budget() -> None:
    dialect = FAMILIES["diffusion-gemma"].dialect({"canvas_length": 256}, "")
    plan = scheduler(num_pages=512, decode_rows=2048)
    for i in range(6):
        plan.add(dialect_sequence(str(i), 10, dialect))
    for _ in range(6):
        rows_of(plan)
    plan.add(dialect_sequence("long", 3000, dialect))
    found = rows_of(plan)
    assert found["long"] == 512
    assert sum(found.values()) == 6 * 256 + 512


def test_texts_without_kv_take_turns() -> None:
    """Each forward of LLaDA is over a whole text, which may have more rows than the budget."""
    dialect = FAMILIES["llada"].dialect({}, "")
    plan = scheduler(num_pages=1, max_rows=64)
    for name in ("a", "b", "c"):
        plan.add(dialect_sequence(name, 300, dialect))
    steps = [planned(plan) for _ in range(6)]
    assert all(len(step) == 1 for step in steps)
    assert {name for step in steps[3:] for name in step} == {"a", "b", "c"}


def test_a_draft_from_a_prediction_fits_into_the_row_budget() -> None:
    plan = scheduler(num_pages=64, max_rows=24)
    params = decode_params("verify", canvas_len=8, max_new_tokens=400)
    request = Request("p", (1, 2, 3), params, prediction=tuple(range(10, 400)))
    predicted = Sequence(request, make_decoder(params.decoder))
    assert predicted.prediction is not None
    for _ in range(5):
        predicted.prediction.observe(100, 100)
    plan.add(predicted)
    plan.plan()
    predicted.kv_len = 2
    (work,) = plan.plan()
    assert work.tail is not None, "the draft and the row before it fit"
    assert MIN_CHUNK_ROWS < work.num_rows <= 24
