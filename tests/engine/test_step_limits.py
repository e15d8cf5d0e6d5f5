"""Rows of a step: limits by measured time while tenants share the engine, and canvas lengths, which change no token."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.round_cost import RoundCost, TimedRound
from quicksilver.core import DecoderName, DecoderParams, Request, Usage
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.score import score_continuations
from quicksilver.engine.admission import ACTIVE_S, ActiveTenants
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.pages import PagePool
from quicksilver.engine.scheduler import Scheduler
from quicksilver.engine.step_limits import MIN_ROWS, CanvasLength
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params, finish_all, generate, tiny_engine

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


PROMPTS = [(i, *range(5, 25)) for i in range(6)]
# Forwards whose time does not depend on their rows, and forwards whose time is proportional to them.
FREE = RoundCost({(rows, gated): 1.0 for rows in (16, 64, 512) for gated in (False, True)})
COSTLY = RoundCost({(rows, gated): 1.0 * rows for rows in (1, 2, 4, 8, 16, 64, 512) for gated in (False, True)})
# Forwards of coder-1.5b on an H200, without and with the canvas adapter.
_MS = {16: (1.04, 1.14), 32: (1.14, 1.29), 64: (1.7, 1.92), 128: (1.99, 3.39), 256: (2.61, 4.15), 512: (3.77, 5.44)}
MEASURED = RoundCost({(rows, gated): ms[gated] for rows, ms in _MS.items() for gated in (False, True)})
# Rounds of nano on an H200.
NANO = (TimedRound(1, 1, 0.652), TimedRound(1, 16, 1.443))


def _texts(config: EngineConfig, decoder: str) -> tuple[list[list[int]], int]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params(decoder, canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    texts = [[token for part in finished[str(i)] for token in part.token_ids] for i in range(len(PROMPTS))]
    return texts, engine.stats().drafted_tokens


def _usages(config: EngineConfig, canvas_len: int) -> list[Usage]:
    engine = tiny_engine(config)
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=canvas_len, max_new_tokens=30)))
    ends = [parts[-1].usage for parts in finish_all(engine).values()]
    return [usage for usage in ends if usage is not None]


@pytest.mark.parametrize("canvas_rows", [0, 30])
def test_rounds_are_counted_whatever_the_canvases_length(canvas_rows: int) -> None:
    """A round is two forwards. An answer may end on the first one, or with one more token and no draft."""
    usages = _usages(EngineConfig(num_pages=128, max_rows=256, canvas_rows=canvas_rows), 12)
    assert len(usages) == len(PROMPTS)
    for usage in usages:
        assert usage.rounds <= usage.drafted <= 11 * usage.rounds
        assert abs(usage.forwards - 2 * usage.rounds) <= 1
        assert usage.completion_tokens == usage.forwards + usage.accepted


def test_canvases_shrink_under_load_and_the_text_stays() -> None:
    free, drafted = _texts(EngineConfig(num_pages=128, max_rows=128), "verify")
    bound, drafted_bound = _texts(EngineConfig(num_pages=128, max_rows=128, canvas_rows=30), "verify")
    assert bound == free
    assert drafted_bound < drafted


def test_acceptance_is_kept_from_one_request_to_the_next() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    before = engine.scheduler.canvas_length.history.prefix_acceptance()
    generate(engine, PROMPTS[0], decode_params("verify", canvas_len=8, max_new_tokens=40))
    assert engine.scheduler.canvas_length.history.prefix_acceptance()[0] < before[0]  # a random adapter


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
    """A request that arrives in between takes a plain step and drafts together with the others."""
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


@pytest.mark.parametrize("cost", [FREE, COSTLY])
def test_no_cost_changes_a_token(cost: RoundCost) -> None:
    alone = [
        generate(tiny_engine(), prompt, decode_params("ar", canvas_len=1, max_new_tokens=30)) for prompt in PROMPTS
    ]
    engine = tiny_engine(EngineConfig(num_pages=128, max_rows=256))
    engine.scheduler.canvas_length.round_cost = cost
    for i, prompt in enumerate(PROMPTS):
        engine.add(Request(str(i), prompt, decode_params("verify", canvas_len=12, max_new_tokens=30)))
    finished = finish_all(engine)
    assert [[t for part in finished[str(i)] for t in part.token_ids] for i in range(len(PROMPTS))] == alone
    drafted = engine.stats().drafted_tokens
    assert drafted == 0 if cost is COSTLY else drafted > 0


def simulate(num_requests: int, rate: float, num_steps: int = 3000) -> list[int]:
    """The canvas lengths that requests open, step by step, with drafts of which each token is accepted at `rate`."""
    lengths, rng, chosen = CanvasLength(0, MEASURED), random.Random(0), list[int]()
    params = decode_params("verify", max_new_tokens=100)
    one = Sequence(Request("x", (1,), params), make_decoder(params.decoder))
    for _ in range(num_steps):
        lengths.begin_step([one] * num_requests)
        chosen.append(lengths.limit(num_requests))
        for _ in range(num_requests if chosen[-1] > 1 else 0):
            accepted = next((i for i in range(chosen[-1] - 1) if rng.random() >= rate), chosen[-1] - 1)
            lengths.observe(accepted, chosen[-1] - 1)
    return chosen


@pytest.mark.parametrize("num_requests", [8, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.75])
def test_the_length_is_stable_under_a_steady_load(num_requests: int, rate: float) -> None:
    chosen = simulate(num_requests, rate)
    changes = sum(a != b for a, b in pairwise(chosen[300:]))
    assert changes <= 4, f"{changes} changes among {sorted(set(chosen))}"


def test_rejected_drafts_end_in_autoregression_under_load() -> None:
    assert set(simulate(32, 0.05)[300:]) == {1}
    assert min(simulate(8, 0.9)[300:]) > 1


def test_canvases_are_shortened_while_requests_wait() -> None:
    length = CanvasLength(canvas_rows=0, round_cost=None, max_rows=64)
    assert length.limit(4) == 0
    assert length.limit(4, has_backlog=True) == 4
    assert length.limit(100, has_backlog=True) == 1


def test_the_choice_counts_running_requests_with_a_grammar() -> None:
    asked: list[int] = []

    class Recorded(RoundCost):
        def canvas_len(self, *arguments: object) -> int:  # type: ignore[override]
            asked.append(arguments[-1])  # type: ignore[arg-type]
            return 4

    length = CanvasLength(0, Recorded({}))
    params = decode_params("verify")
    made = [Sequence(Request(str(i), (1, 2), params), make_decoder(params.decoder)) for i in range(3)]
    made[1].constraint = Staircase()
    length.begin_step(made)
    assert length.limit(3) == 4
    assert asked == [1]
