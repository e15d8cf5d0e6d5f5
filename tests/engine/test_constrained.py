"""Every decoder under a grammar: nothing illegal is committed, forced text costs no forward, the end is kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine, tiny_model

PROMPT = tuple(range(5, 25))
DECODERS = ["ar", "verify", "confidence", "edit"]


def constrained_engine(length: int = 25) -> Engine:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96), tiny_model())
    engine.constraints = lambda spec: Staircase(length)
    return engine


def run(name: str, length: int = 25, **changes: object) -> tuple[list[int], list[Delta]]:
    engine = constrained_engine(length)
    params = decode_params(name, canvas_len=8, threshold=0.3, edit_threshold=0.3, stop_ids=(STOP,), **changes)
    engine.add(Request("x", PROMPT, params, constraint=ConstraintSpec("staircase")))
    deltas = finish_all(engine)["x"]
    assert engine.pool.num_free == 64
    return answers({"x": deltas})["x"], deltas


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_nothing_illegal_is_ever_committed(name: str, temperature: float) -> None:
    for seed in range(4):
        tokens, deltas = run(name, max_new_tokens=60, temperature=temperature, seed=seed)
        assert len(tokens) == 25
        assert Staircase().legal_prefix(tokens) == 25
        assert deltas[-1].finish is FinishReason.STOP


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_constrained_verify_equals_constrained_autoregression(temperature: float) -> None:
    ar, _ = run("ar", max_new_tokens=60, temperature=temperature)
    verify, _ = run("verify", max_new_tokens=60, temperature=temperature)
    assert verify == ar


@pytest.mark.parametrize("name", ["ar", "verify"])
def test_forced_tokens_cost_no_forward_and_are_counted(name: str) -> None:
    tokens, deltas = run(name, max_new_tokens=60)
    num_forced = sum(delta.num_forced for delta in deltas)
    assert num_forced == len([i for i in range(25) if i % 6 == 5])
    usage = deltas[-1].usage
    assert usage is not None
    assert usage.forwards <= len(tokens) - num_forced


@pytest.mark.parametrize("name", DECODERS)
def test_the_shortest_completion_is_written_when_few_tokens_are_left(name: str) -> None:
    tokens, deltas = run(name, length=25, max_new_tokens=25)
    assert Staircase().legal_prefix(tokens) == len(tokens) == 25
    assert deltas[-1].finish in (FinishReason.LENGTH, FinishReason.STOP)


@pytest.mark.parametrize("name", DECODERS)
def test_too_few_tokens_end_with_length_and_a_legal_prefix(name: str) -> None:
    tokens, deltas = run(name, length=25, max_new_tokens=11)
    assert Staircase().legal_prefix(tokens) == len(tokens) == 11
    assert deltas[-1].finish is FinishReason.LENGTH


def test_a_constraint_that_raises_fails_its_own_request_only() -> None:
    class Broken(Staircase):
        def legal_prefix(self, tokens: Sequence[int]) -> int:
            raise RuntimeError("broken")

    engine = constrained_engine()
    engine.constraints = lambda spec: Broken() if spec.grammar == "broken" else Staircase()
    params = decode_params("verify", canvas_len=8, stop_ids=(STOP,), max_new_tokens=60)
    for name in ("broken", "fine"):
        engine.add(Request(name, PROMPT, params, constraint=ConstraintSpec(name)))
    deltas = finish_all(engine)
    assert deltas["broken"][-1].finish is FinishReason.ERROR
    assert answers(deltas)["fine"] == run("verify", max_new_tokens=60)[0]


class Letter(ForcedPrefixes):
    """Tokens 0 to 95 are the letters a and b in turns, so that half of them may come while one is due."""

    def __init__(self) -> None:
        super().__init__([b"ab"[i % 2 : i % 2 + 1] for i in range(STOP)], STOP + 1)


def run_led(name: str, lead: str, **changes: object) -> tuple[list[int], Engine]:
    engine = constrained_engine()
    engine.constraints = Letter().constraint
    params = decode_params(name, canvas_len=8, threshold=0.3, stop_ids=(STOP,), max_new_tokens=20, **changes)
    engine.add(Request("x", PROMPT, params, constraint=ConstraintSpec(lead=lead)))
    return answers(finish_all(engine))["x"], engine


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("lead", ["a", "bbab", "abbababbaa"])
def test_an_answer_begins_with_its_forced_prefix_and_continues_freely(name: str, lead: str) -> None:
    tokens, _ = run_led(name, lead)
    assert "".join("ab"[token % 2] for token in tokens).startswith(lead)
    assert tokens[: len(lead)] == run_led(name, lead + "ab"[tokens[len(lead)] % 2])[0][: len(lead)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_verify_with_a_forced_prefix_equals_autoregression(temperature: float) -> None:
    for lead in ("a", "b", "bbab"):
        assert run_led("verify", lead, temperature=temperature)[0] == run_led("ar", lead, temperature=temperature)[0]


def test_a_constraint_that_allows_everything_is_dropped() -> None:
    engine = constrained_engine()
    engine.constraints = Letter().constraint
    params = decode_params("ar", stop_ids=(STOP,), max_new_tokens=20)
    prepared = engine.prepare(Request("x", PROMPT, params, constraint=ConstraintSpec(lead="ab")))
    engine.enqueue(prepared)
    sequence, seen = prepared.sequence, list[tuple[int, bool]]()
    while engine.has_work:
        engine.step()
        seen.append((len(sequence.generated), sequence.constraint is None))
    assert (1, False) in seen
    assert (2, True) in seen
