"""Every decoder under a grammar: nothing illegal is committed, forced text costs no forward, the end is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quicksilver.constrain.canvas import sweep
from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from tests.tiny import answers, decode_params, finish_all, tiny_engine, tiny_model

VOCAB, STOP = 97, 96
PROMPT = tuple(range(5, 25))
DECODERS = ["ar", "verify", "confidence", "edit"]


class Staircase:
    """A toy automaton: token i must be congruent to i modulo 7; every sixth is forced; `length` tokens make a text."""

    def __init__(self, length: int = 25) -> None:
        self.length = length
        self.taken: list[int] = []

    def may_come(self, place: int) -> list[int]:
        if place >= self.length:
            return [STOP]
        if place % 6 == 5:
            return [place % 7 + 7]
        return [token for token in range(STOP) if token % 7 == place % 7]

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        found: list[int] = []
        start = len(self.taken) + len(ahead)
        while len(choices := self.may_come(start + len(found))) == 1 and choices != [STOP]:
            found += choices
        return found

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        words = np.asarray(out).view(np.int32)
        num_rows = min(self.legal_prefix(ahead) + 1, len(ahead) + 1)
        for row in range(num_rows):
            for token in self.may_come(len(self.taken) + row):
                words[row, token // 32] |= np.int32(1 << (token % 32)) if token % 32 < 31 else np.int32(-(2**31))
        return num_rows

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens):
            if token not in self.may_come(len(self.taken) + i):
                return i
        return len(tokens)

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        return sweep(self, canvas)

    def advance(self, tokens: Sequence[int]) -> None:
        assert self.legal_prefix(tokens) == len(tokens), "an illegal token was committed"
        self.taken += tokens

    def can_stop(self) -> bool:
        return len(self.taken) == self.length

    def must_stop(self) -> bool:
        return self.can_stop()

    def closing(self, room: int) -> list[int] | None:
        left = [self.may_come(place)[0] for place in range(len(self.taken), self.length)]
        return left if len(left) == room else None


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
def test_constrained_verify_is_exactly_the_masked_autoregressive_text(temperature: float) -> None:
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
def test_when_room_runs_out_the_shortest_completion_is_written(name: str) -> None:
    tokens, deltas = run(name, length=25, max_new_tokens=25)
    assert Staircase().legal_prefix(tokens) == len(tokens) == 25
    assert deltas[-1].finish in (FinishReason.LENGTH, FinishReason.STOP)


@pytest.mark.parametrize("name", DECODERS)
def test_too_little_room_says_length_and_stays_a_lawful_prefix(name: str) -> None:
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
