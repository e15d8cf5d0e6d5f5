"""The engine as a whole: aborts, failures of single requests, little memory, full queues, budgets and results."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest
import torch

from quicksilver.backends.base import Work
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.core import (
    DecodeParams,
    Delta,
    FinishReason,
    Frame,
    Request,
    ResumePoint,
    ScoreRequest,
    ThinkBudget,
)
from quicksilver.diffusion import verify
from quicksilver.diffusion.decoder import Canvas, Decision, Tail
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.admission import WaitQueue
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.errors import EngineOverloaded, EngineUnavailable
from tests.support.tiny import answers, decode_params, finish_all, generate, tiny_engine, tiny_model, uncached

PROMPT = tuple(range(5, 40))
DECODERS = ["ar", "verify", "confidence", "edit"]


def test_a_warm_up_is_not_counted_and_changes_no_answer() -> None:
    cold, warm = tiny_engine(EngineConfig()), tiny_engine(EngineConfig())
    free = warm.stats().free_pages
    warm.warm_up()
    assert (warm.stats().requests, warm.stats().steps, warm.stats().free_pages) == (0, 0, free)
    params = decode_params("verify", max_new_tokens=12)
    assert generate(warm, PROMPT, params) == generate(cold, PROMPT, params)


def test_usage_has_the_wait_for_the_first_forward_and_the_time_in_the_engine() -> None:
    engine = tiny_engine(EngineConfig(max_running=1))
    for name in ("first", "second"):
        engine.add(Request(name, PROMPT, decode_params("ar", max_new_tokens=6)))
    deltas = finish_all(engine)
    first, second = deltas["first"][-1].usage, deltas["second"][-1].usage
    assert first is not None
    assert second is not None
    # The second request waits for the end of the first, so longer than that one took.
    assert 0 < first.queued_s < first.engine_s <= second.queued_s < second.engine_s
    times = [delta.usage.engine_s for delta in deltas["second"] if delta.usage is not None]
    assert times == sorted(times)


def test_five_hundred_random_aborts_return_every_counter_to_its_start_value() -> None:
    rng = random.Random(0)
    engine = tiny_engine(EngineConfig(num_pages=24, max_rows=64, max_running=6))
    live: list[str] = []
    for number in range(500):
        params = decode_params(rng.choice(DECODERS), canvas_len=8, max_new_tokens=rng.randrange(1, 30))
        prompt = tuple(rng.randrange(97) for _ in range(rng.randrange(1, 60)))
        engine.add(Request(str(number), prompt, params, tenant=rng.choice("ab")))
        live.append(str(number))
        if rng.random() < 0.5:
            engine.step()
        engine.abort(live.pop(rng.randrange(len(live))))
    finish_all(engine)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, 24)
    assert stats.aborts > 100
    assert engine._sequences == {}


def test_all_requests_finish_with_memory_for_a_quarter_of_them() -> None:
    params = decode_params("verify", canvas_len=8, max_new_tokens=40)
    demand = 12 * ((len(PROMPT) + 40 + 8) // 16 + 1)
    engine = tiny_engine(EngineConfig(num_pages=demand // 4, max_rows=64))
    for i in range(12):
        engine.add(Request(str(i), (i, *PROMPT), params))
    finished = finish_all(engine)
    assert len(finished) == 12
    assert all(parts[-1].finish is FinishReason.LENGTH for parts in finished.values())
    assert engine.pool.num_free == demand // 4


class FaultyBackend(TorchBackend):
    """Raises, or returns non-finite numbers, in every forward with rows of one certain request."""

    victim, mode = "victim", "raise"

    def run(self, works: Sequence[Work]):  # type: ignore[no-untyped-def]
        is_hit = [work.sequence.id == self.victim and work.sequence.forwards >= 2 for work in works]
        if self.mode == "raise" and any(is_hit):
            raise RuntimeError("a kernel failed")
        outcomes = super().run(works)
        for hit, outcome in zip(is_hit, outcomes, strict=True):
            if hit and outcome is not None:
                outcome.proposal.is_finite[:] = False
        return outcomes


@pytest.mark.parametrize("mode", ["raise", "nan"])
def test_if_one_request_fails_the_others_in_its_forward_go_on(mode: str) -> None:
    params = decode_params("verify", canvas_len=8, max_new_tokens=30)
    alone = {name: generate(tiny_engine(), (ord(name) % 97, *PROMPT), params) for name in "ab"}
    engine = tiny_engine()
    engine.backend = FaultyBackend(engine.backend.model, engine.backend.cache, 64)
    engine.backend.mode = mode
    for name in ("a", "victim", "b"):
        engine.add(Request(name, (ord(name[0]) % 97, *PROMPT), params))
    deltas = finish_all(engine)
    last = deltas.pop("victim")[-1]
    assert last.finish is FinishReason.ERROR
    assert last.error is not None
    assert last.error.startswith("row_failed: ")
    assert answers(deltas) == alone
    assert engine.pool.num_free == 64


def test_logits_that_are_not_finite_fail_the_request() -> None:
    engine = tiny_engine(model=_poisoned())
    engine.add(Request("x", (1, 2, 3), decode_params("ar", max_new_tokens=4)))
    assert finish_all(engine)["x"][-1].finish is FinishReason.ERROR


def _poisoned() -> torch.nn.Module:
    model = copy.deepcopy(tiny_model())
    model.norm.weight.data[:] = torch.nan
    return model


def test_spare_pages_are_taken_several_at_a_time() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, page_size=4, max_rows=96, spare_pages=8))
    engine.add(Request("0", tuple(range(5, 25)), decode_params("ar", canvas_len=1, max_new_tokens=100)))
    held: list[int] = []
    while engine.has_work:
        engine.step()
        for sequence in engine.scheduler.running:
            held.append(len(sequence.pages))
            assert 6 <= held[-1] - -(-sequence.kv_len // 4) <= 9
    assert len(set(held)) <= 1 + 100 // (3 * 4)


def test_a_full_queue_refuses_and_recovers() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_waiting=2, max_running=1))
    for i in range(2):
        engine.add(Request(str(i), PROMPT, decode_params("ar", max_new_tokens=2)))
    with pytest.raises(EngineUnavailable):
        engine.add(Request("one more", PROMPT, decode_params("ar")))
    finish_all(engine)
    engine.add(Request("later", PROMPT, decode_params("ar", max_new_tokens=2)))
    assert "later" in finish_all(engine)


def test_a_full_queue_takes_requests_that_another_engine_had_accepted() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_waiting=1, max_running=1))
    params = decode_params("ar", max_new_tokens=4)
    engine.add(Request("first", PROMPT, params))
    point = ResumePoint(tuple(generate(tiny_engine(), PROMPT, params)[:2]))
    engine.add(Request("continued", PROMPT, params, resume=point))
    engine.add_score(ScoreRequest("scored again", PROMPT, ((1,),), is_continued=True))
    with pytest.raises(EngineUnavailable):
        engine.add_score(ScoreRequest("new", PROMPT, ((1,),)))
    assert set(finish_all(engine)) == {"first", "continued"}
    assert engine.stats().requests == 3


def test_tenants_take_turns_whatever_one_of_them_queues() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_running=1))
    for i in range(5):
        engine.add(Request(f"greedy {i}", PROMPT, decode_params("ar", max_new_tokens=2), tenant="greedy"))
    engine.add(Request("modest", PROMPT, decode_params("ar", max_new_tokens=2), tenant="modest"))
    order = list(finish_all(engine))
    assert order.index("modest") == 1


def test_a_thinking_budget_closes_the_channel_and_leaves_room_for_the_answer() -> None:
    think = ThinkBudget(close_ids=(90, 91), max_tokens=6)
    tokens = generate(tiny_engine(), PROMPT, decode_params("verify", max_new_tokens=20), think=think)
    free = generate(tiny_engine(), PROMPT, decode_params("verify", max_new_tokens=20))
    assert tokens[:6] == free[:6]
    assert tokens[6:8] == [90, 91]
    assert len(tokens) == 20


def test_a_stop_token_inside_thinking_closes_the_channel_instead_of_ending_empty() -> None:
    free = generate(tiny_engine(), PROMPT, decode_params("ar", max_new_tokens=20))
    params = decode_params("ar", max_new_tokens=20, stop_ids=(free[3],))
    tokens = generate(tiny_engine(), PROMPT, params, think=ThinkBudget((90,), max_tokens=15))
    assert tokens[: free.index(free[3]) + 1] == [*free[: free.index(free[3])], 90]
    assert len(tokens) > 4


@pytest.mark.parametrize("name", DECODERS)
def test_frames_show_the_canvas_and_the_deltas_the_text(name: str) -> None:
    engine = tiny_engine()
    params = decode_params(name, canvas_len=8, threshold=0.5, max_new_tokens=20)
    engine.add(Request("x", PROMPT, params, wants_frames=True))
    frames, tokens = list[Frame](), list[int]()
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Frame):
                frames.append(event)
            elif isinstance(event, Delta):
                tokens += event.token_ids
    assert len(frames) >= 3
    assert all(len(f.token_ids) == len(f.is_decided) == len(f.confidence) <= 8 for f in frames)
    assert [frame.step for frame in frames] == sorted({frame.step for frame in frames})
    assert tokens == generate(tiny_engine(), PROMPT, params)


@pytest.mark.parametrize("name", DECODERS)
def test_logprobs_are_the_models_own_at_the_committed_position(name: str) -> None:
    engine = tiny_engine()
    params = decode_params(name, canvas_len=4, threshold=1.0, edit_threshold=1.0, max_new_tokens=12, logprobs=3)
    engine.add(Request("x", PROMPT, params))
    deltas = finish_all(engine)["x"]
    tokens, logprobs = answers({"x": deltas})["x"], [lp for delta in deltas for lp in delta.logprobs]
    assert [lp.token_id for lp in logprobs] == tokens
    assert all(len(lp.top) == 3 and lp.top[0][1] >= lp.logprob - 1e-6 for lp in logprobs)
    if name in ("ar", "verify"):
        expected = _causal_logprobs(PROMPT, tokens)
        assert [lp.logprob for lp in logprobs] == pytest.approx(expected, abs=1e-4)


def test_frames_carry_alternatives_where_logprobs_are_asked_for() -> None:
    engine = tiny_engine()
    params = decode_params("confidence", canvas_len=4, threshold=1.0, max_new_tokens=8, logprobs=3)
    engine.add(Request("x", PROMPT, params, wants_frames=True))
    events = [event for event in iter_events(engine) if isinstance(event, Frame) and event.token_ids]
    told = [(token, top) for frame in events for token, top in zip(frame.token_ids, frame.top, strict=True) if top]
    assert told
    assert all(len(top) == 3 and token in [other for other, _ in top] for token, top in told)


def iter_events(engine: Engine) -> Iterator[object]:
    while engine.has_work:
        yield from engine.step()


def _causal_logprobs(prompt: tuple[int, ...], tokens: list[int]) -> list[float]:
    predict, text, found = uncached(tiny_model()), list(prompt), []
    for token in tokens:
        found.append(float(predict(text, Tail())[0].log_softmax(-1)[token]))
        text.append(token)
    return found


def test_scoring_equals_the_causal_likelihood_and_runs_beside_other_requests() -> None:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=24))
    continuations = ((1, 2, 3), (4,), (5, 6, 7, 8, 9))
    engine.add(Request("beside", PROMPT, decode_params("verify", max_new_tokens=10)))
    engine.add_score(ScoreRequest("s", PROMPT, continuations))
    scored = []
    while engine.has_work:
        scored += [event for event in engine.step() if isinstance(event, Scored)]
    for continuation, logprobs in zip(continuations, scored[0].scores.logprobs, strict=True):
        assert logprobs == pytest.approx(_causal_logprobs(PROMPT, list(continuation)), abs=1e-4)
    assert engine.pool.num_free == 64


def test_usage_counts_every_token_forward_and_draft() -> None:
    engine = tiny_engine()
    engine.add(Request("x", PROMPT, decode_params("verify", canvas_len=8, max_new_tokens=30)))
    deltas = finish_all(engine)["x"]
    usages = [delta.usage for delta in deltas if delta.usage is not None]
    assert [usage.completion_tokens for usage in usages] == list(accumulate(len(delta.token_ids) for delta in deltas))
    usage = usages[-1]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 30)
    assert 0 <= usage.accepted <= usage.drafted
    assert usage.forwards == engine.stats().steps
    assert usage.rows == engine.stats().rows


def test_sampled_verify_follows_the_autoregressive_distribution() -> None:
    degrees, statistic = _chi_square_of_second_token()
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5


def test_the_distribution_test_fails_for_a_decoder_that_skips_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(canvas: Canvas, proposal: Proposal) -> Decision:
        return Decision([*canvas.token_ids.tolist(), int(proposal.token_ids[-1])], None, len(canvas.token_ids))

    monkeypatch.setattr(verify, "_verified", trust)
    degrees, statistic = _chi_square_of_second_token()
    assert statistic > degrees + 5 * (2 * degrees) ** 0.5


def _chi_square_of_second_token() -> tuple[int, float]:
    """Sampled second tokens of 3,000 answers against their exact distribution: degrees of freedom, statistic."""
    trials, counts, prompt = 3000, torch.zeros(97), (3, 1, 4)
    engine = tiny_engine(EngineConfig(num_pages=256, max_rows=512, max_running=64))
    for start in range(0, trials, 60):
        for seed in range(start, start + 60):
            params = decode_params("verify", canvas_len=4, max_new_tokens=3, temperature=2.0, seed=seed)
            engine.add(Request(str(seed), prompt, params))
        for tokens in answers(finish_all(engine)).values():
            counts[tokens[1]] += 1
    expected = _second_token_distribution(prompt, temperature=2.0) * trials
    is_common = expected >= 5
    observed = torch.cat([counts[is_common], counts[~is_common].sum()[None]])
    wanted = torch.cat([expected[is_common], expected[~is_common].sum()[None].clamp_min(1)])
    return len(observed) - 1, float(((observed - wanted) ** 2 / wanted).sum())


def _second_token_distribution(prompt: tuple[int, ...], temperature: float) -> torch.Tensor:
    predict = uncached(tiny_model())
    first = (predict(prompt, Tail())[0] / temperature).softmax(-1)
    rows = [(predict((*prompt, token), Tail())[0] / temperature).softmax(-1) for token in range(97)]
    return (first[:, None] * torch.stack(rows)).sum(0)


def test_params_default_to_a_request_that_runs() -> None:
    assert len(generate(tiny_engine(), PROMPT, DecodeParams(max_new_tokens=3))) == 3


class SetClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backlogged_engine(clock: SetClock) -> Engine:
    """One request runs, three wait; none was admitted from the queue for 30 s."""
    engine = tiny_engine(EngineConfig(num_pages=64, max_running=1))
    engine.scheduler.waiting = WaitQueue(clock)
    for i in range(4):
        engine.add(Request(f"early {i}", PROMPT, decode_params("ar", max_new_tokens=4)))
    engine.step()
    clock.now += 30
    return engine


def test_a_request_that_cannot_start_in_time_is_refused_at_once() -> None:
    engine = backlogged_engine(SetClock())
    with pytest.raises(EngineOverloaded) as refused:
        engine.add(Request("late", PROMPT, decode_params("ar"), start_within_s=10))
    assert refused.value.retry_after_s == pytest.approx(35)
    assert engine.stats().refused == 1
    params = decode_params("ar", max_new_tokens=2)
    engine.add(Request("patient", PROMPT, params, start_within_s=60))
    engine.add(Request("unlimited", PROMPT, params))
    engine.add(Request("other tenant", PROMPT, params, "b", start_within_s=20))
    engine.add(Request("batch", PROMPT, params, is_batch=True))
    engine.add(Request("continued", PROMPT, params, start_within_s=1, resume=ResumePoint()))
    assert {"patient", "unlimited", "other tenant", "batch", "continued"} <= set(finish_all(engine))


def test_a_request_that_did_not_start_in_time_is_refused_when_its_time_is_over() -> None:
    clock = SetClock()
    engine = backlogged_engine(clock)
    engine.add(Request("late", PROMPT, decode_params("ar"), start_within_s=60))
    clock.now += 61
    (delta,) = [event for event in engine.step() if event.request_id == "late"]
    assert isinstance(delta, Delta)
    assert delta.finish is FinishReason.ERROR
    assert (delta.error or "").startswith("engine_overloaded: ")
    assert len(finish_all(engine)) == 4
    assert engine.stats().refused == 1


def test_the_order_of_admission_changes_no_token() -> None:
    alone = generate(tiny_engine(), PROMPT, decode_params("verify", max_new_tokens=12))
    engine = tiny_engine(EngineConfig(num_pages=64, max_running=2))
    for i in range(6):
        params = decode_params("verify", max_new_tokens=12)
        engine.add(Request(str(i), PROMPT, params, f"tenant {i % 2}", is_batch=i < 3))
    assert all(tokens == alone for tokens in answers(finish_all(engine)).values())


def test_a_request_is_answered_while_a_large_scoring_request_runs() -> None:
    engine = tiny_engine(EngineConfig(num_pages=256, page_size=4, max_rows=16))
    engine.add_score(ScoreRequest("s", PROMPT, tuple((i % 90, 1, 2) for i in range(300))))
    for _ in range(3):
        assert not any(isinstance(event, Scored) for event in engine.step())
    engine.add(Request("short", (7, *PROMPT), decode_params("ar", max_new_tokens=2)))
    events: list[object] = []
    while not any(isinstance(event, Delta) and event.finish for event in events):
        events += engine.step()
        assert not any(isinstance(event, Scored) for event in events), "the scoring request should end last"
    while engine.has_work:
        events += engine.step()
    assert any(isinstance(event, Scored) for event in events)
