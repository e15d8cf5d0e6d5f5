"""Decoding in slots of a persistent batch: the same tokens as ordinary forwards, whatever joins, leaves or fails."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quicksilver.core import DecodeParams, Delta, FinishReason, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.decode_slots import MIN_SEQUENCES
from quicksilver.engine.engine import Engine
from tests.engine.leaks import ENDS, RandomTraffic
from tests.support.host_rounds import HostRounds, with_host_rounds
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine

RANDOM = random.Random(3)
PROMPTS = [tuple(RANDOM.randrange(97) for _ in range(RANDOM.randrange(2, 60))) for _ in range(14)]
PARAMS = [
    decode_params("ar", max_new_tokens=20),
    decode_params("ar", max_new_tokens=9, temperature=0.9, seed=5),
    decode_params("verify", canvas_len=8, max_new_tokens=18),
    decode_params("verify", canvas_len=16, max_new_tokens=18, stop_ids=(5, 17, 40, 60), banned_ids=(3,)),
    decode_params("verify", max_new_tokens=17, logit_bias={7: 3.0}, temperature=1.1, seed=2),
]
OTHERS = [
    decode_params("confidence", canvas_len=8, threshold=0.3, max_new_tokens=20),
    decode_params("verify", max_new_tokens=12, logprobs=1),
]


def requests(params: list[DecodeParams], count: int = 14) -> list[Request]:
    return [Request(str(i), PROMPTS[i % 14], params[i % len(params)]) for i in range(count)]


def run(engine: Engine, wanted: list[Request], at_once: int = 7) -> dict[str, list[Delta]]:
    """Adds requests while others run, so that they join a batch that is decoding."""
    deltas: dict[str, list[Delta]] = {}
    left = list(wanted)
    while left or engine.has_work:
        for request in left[:at_once]:
            engine.add(request)
        left = left[at_once:]
        for event in [event for _ in range(3) for event in engine.step()]:
            assert isinstance(event, Delta)
            deltas.setdefault(event.request_id, []).append(event)
    return deltas


def alone(wanted: list[Request]) -> dict[str, list[int]]:
    engine = tiny_engine()
    for request in wanted:
        engine.add(request)
    return answers(finish_all(engine))


def slot_engine(num_pages: int = 256, num_slots: int = 32) -> tuple[Engine, HostRounds]:
    engine = tiny_engine(EngineConfig(num_pages=num_pages, max_rows=96))
    return engine, with_host_rounds(engine, num_slots)


@pytest.mark.parametrize("params", [PARAMS[:1], PARAMS, PARAMS + OTHERS], ids=["ar", "mixed", "with others"])
def test_slots_give_the_tokens_of_ordinary_forwards(params: list[DecodeParams]) -> None:
    engine, rounds = slot_engine()
    wanted = requests(params)
    found = run(engine, wanted)
    assert answers(found) == alone(wanted)
    assert rounds.num_launched > 5
    assert engine.pool.num_free == 256


def test_usage_and_finish_are_those_of_ordinary_forwards() -> None:
    engine, _ = slot_engine()
    plain = tiny_engine(EngineConfig(num_pages=256, max_rows=96))
    wanted = requests([decode_params("ar", max_new_tokens=20, stop_ids=(5, 17))])
    found, expected = run(engine, wanted), run(plain, wanted)
    for name, deltas in expected.items():
        assert found[name][-1].finish is deltas[-1].finish
        usage, other = found[name][-1].usage, deltas[-1].usage
        assert usage is not None
        assert other is not None
        # A prompt may be cut differently, because sequences in slots do not count against the rows of a forward.
        assert replace(usage, forwards=other.forwards) == other
    assert engine.stats().generated_tokens == plain.stats().generated_tokens


@pytest.mark.parametrize("num_pages", [14, 24])
def test_short_memory_preempts_and_changes_no_token(num_pages: int) -> None:
    engine, rounds = slot_engine(num_pages)
    wanted = requests(PARAMS)
    assert answers(run(engine, wanted)) == alone(wanted)
    assert engine.pool.num_free == num_pages
    assert rounds.num_launched > 0


def test_more_requests_than_slots() -> None:
    engine, _ = slot_engine(num_slots=6)
    wanted = requests(PARAMS)
    assert answers(run(engine, wanted, at_once=14)) == alone(wanted)


def test_few_requests_do_not_use_slots() -> None:
    engine, rounds = slot_engine()
    run(engine, requests(PARAMS, MIN_SEQUENCES - 1))
    assert rounds.num_launched == 0


def test_an_abort_ends_a_request_before_the_next_step() -> None:
    engine, _ = slot_engine()
    wanted = requests([decode_params("ar", max_new_tokens=20)], 8)
    for request in wanted:
        engine.add(request)
    for _ in range(6):
        engine.step()
    assert engine.slots is not None
    assert len(engine.slots) == 8
    engine.abort("3")
    assert len(engine.slots) == 7
    deltas = finish_all(engine)
    assert [delta.finish for delta in deltas["3"]] == [FinishReason.ABORT]
    assert all(deltas[str(i)][-1].finish is FinishReason.LENGTH for i in range(8) if i != 3)
    assert engine.pool.num_free == 256


def test_a_device_that_refuses_rounds_leaves_ordinary_forwards() -> None:
    engine, rounds = slot_engine()
    wanted = requests(PARAMS)
    for request in wanted:
        engine.add(request)
    found = [event for _ in range(8) for event in engine.step()]
    rounds.fails = True
    deltas = {request.id: [event for event in found if event.request_id == request.id] for request in wanted}
    for name, parts in finish_all(engine).items():
        deltas[name] += parts
    assert answers(deltas) == alone(wanted)  # type: ignore[arg-type]
    assert engine.pool.num_free == 256


def test_sequences_move_to_lower_slots_when_the_batch_shrinks() -> None:
    engine, _ = slot_engine(num_slots=64)
    params = [decode_params("ar", max_new_tokens=4 if i < 20 else 40) for i in range(26)]
    wanted = [Request(str(i), PROMPTS[i % 14], one) for i, one in enumerate(params)]
    assert answers(run(engine, wanted, at_once=26)) == alone(wanted)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_requests_release_everything(seed: int) -> None:
    """`python -m tests.engine.leaks` runs 10,000 requests."""
    traffic = RandomTraffic(seed)
    traffic.run(400)
    assert set(traffic.ends) >= ENDS
    assert traffic.rounds.num_launched > 0
    assert traffic.leftovers() == {}
