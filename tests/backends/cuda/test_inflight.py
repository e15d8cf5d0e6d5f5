"""The host-side mirror of queued rounds, over a simulated device whose drafts are right most of the time."""

from __future__ import annotations

import random

import pytest
import torch

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape, fits, is_draft, is_verification
from quicksilver.core import Delta, Request, ThinkBudget, Usage
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from tests.support.proposals import confident
from tests.support.tiny import decode_params, generate, tiny_engine

PROMPT = tuple(range(5, 25))
LONGEST = 40
SHAPES = [RoundShape(1, 1), RoundShape(1, 4), RoundShape(1, 8)]


class SimulatedDevice:
    """Runs the first forward on the real backend, then simulates rounds of one shape with a state of its own."""

    def __init__(self, engine: Engine, shape: RoundShape, text: list[int]) -> None:
        self.run_forward, self.shape, self.text = engine.backend.run, shape, text
        self.in_flight: InFlightRounds | None = None
        self.num_starts = self.num_forwards = 0
        self._end, self._draft = 0, list[int]()
        self._rng = random.Random(0)

    def run(self, works: list[Work]) -> list[Outcome | None]:
        if self.in_flight is not None and not self.in_flight.expects(works):
            self.in_flight = None
        if self.in_flight is None:
            if not self.shape.accepts(works):
                self.num_forwards += 1
                return self.run_forward(works)
            self.in_flight = InFlightRounds.start(self.shape, works)
            self.num_starts += 1
            self._end, self._draft = self.in_flight.ends[0], list(self.in_flight.drafts[0])
        return list(self.in_flight.deliver(works, self._forward()))

    def _forward(self) -> Proposal:
        """The proposals of one forward; advances the device's state."""
        own, had_draft = self._front(self._end, self.shape.canvas_len), bool(self._draft)
        accepted = 0
        while accepted < len(self._draft) and own[accepted] == self._draft[accepted]:
            accepted += 1
        if had_draft:
            self._draft = []
        else:
            self._draft = self._guess(self._end + 1)
            own = own[:1] + self._draft
        self._end += accepted + 1
        return _proposal(own)

    def _front(self, start: int, count: int) -> list[int]:
        return self.text[start : start + count]

    def _guess(self, start: int) -> list[int]:
        true = self._front(start, self.shape.canvas_len - 1)
        return [token if self._rng.random() < 0.8 else (token + 1) % 30 for token in true]


def _proposal(tokens: list[int]) -> Proposal:
    return confident(tokens)


def _engine(shape: RoundShape) -> Engine:
    return tiny_engine(EngineConfig(num_pages=64, max_rows=96))


def _generate(shape: RoundShape, count: int, text: list[int]) -> tuple[SimulatedDevice, list[int], Usage]:
    engine = _engine(shape)
    device = SimulatedDevice(engine, shape, text)
    engine.backend.run = device.run  # type: ignore[method-assign, assignment]
    name = "ar" if shape.canvas_len == 1 else "verify"
    engine.add(Request("0", PROMPT, decode_params(name, canvas_len=shape.canvas_len, max_new_tokens=count)))
    answer: list[int] = []
    last = None
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            answer += event.token_ids
            last = event.usage
    assert last is not None
    return device, answer, last


@pytest.fixture(scope="module")
def text() -> list[int]:
    """The prompt and more of the model's own text than any answer here takes."""
    params = decode_params("ar", canvas_len=1, max_new_tokens=LONGEST + 20)
    return [*PROMPT, *generate(_engine(RoundShape(1, 1)), PROMPT, params)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounds_start_after_the_prompt_and_last_to_the_end_of_the_answer(shape: RoundShape, text: list[int]) -> None:
    """For every answer length, only the prompt runs outside of the rounds."""
    for count in range(2, LONGEST):
        device, answer, usage = _generate(shape, count, text)
        assert answer == text[len(PROMPT) : len(PROMPT) + count]
        assert (device.num_forwards, device.num_starts) == (1, 1), count
        assert 0 <= usage.forwards + usage.accepted - usage.completion_tokens <= 1, usage


def test_a_request_for_something_else_is_not_expected(text: list[int]) -> None:
    engine, shape = _engine(RoundShape(1, 4)), RoundShape(1, 4)
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    in_flight = InFlightRounds.start(shape, [work])
    assert is_verification(work)
    assert not is_draft(work)
    assert in_flight.half == 1
    assert in_flight.expects([work])
    assert not in_flight.expects([])
    in_flight.drafts[0] = tuple(token + 1 for token in in_flight.drafts[0])
    assert not in_flight.expects([work])
    in_flight.drafts[0] = ()
    assert not in_flight.expects([work])


@pytest.mark.parametrize("shape", [RoundShape(1, 1), RoundShape(1, 4)], ids=str)
def test_a_token_that_the_engine_put_in_place_of_another_is_not_expected(shape: RoundShape) -> None:
    """The engine closes a thought that the model would end with a stop token: the text is as long as on the device."""
    engine = _engine(shape)
    name = "ar" if shape.canvas_len == 1 else "verify"
    params = decode_params(name, canvas_len=shape.canvas_len, max_new_tokens=30, stop_ids=(40,))
    engine.add(Request("0", PROMPT, params, think=ThinkBudget((90,), max_tokens=20)))
    engine.step()
    (work,) = engine.scheduler.plan()
    in_flight = InFlightRounds.start(shape, [work])
    assert work.tail is not None
    proposed = [*work.tail.token_ids, 40]  # all of a draft is accepted
    (outcome,) = in_flight.deliver([work], _proposal(proposed))
    engine._commit(work, outcome)
    assert work.sequence.tokens[-1] == 90
    (following,) = engine.scheduler.plan()
    assert following.end == in_flight.ends[0]
    assert not in_flight.expects([following])


def test_a_canvas_may_be_shorter_than_the_graph_only_at_the_end_of_an_answer() -> None:
    engine = _engine(RoundShape(1, 8))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    assert fits(work, 4)
    assert not fits(work, 8)
    assert not RoundShape(1, 8).accepts([work])
    work.sequence.tokens += [1] * (work.sequence.room - 3)
    assert fits(work, 8)


def test_no_round_is_launched_after_the_last(text: list[int]) -> None:
    engine = _engine(RoundShape(1, 4))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=5)))
    engine.step()
    (work,) = engine.scheduler.plan()
    in_flight = InFlightRounds.start(RoundShape(1, 4), [work])
    assert not in_flight.covers_remaining()  # one token of five is committed
    in_flight.queued.append((torch.zeros(1), lambda: None))
    assert not in_flight.covers_remaining()
    in_flight.queued.append((torch.zeros(1), lambda: None))
    assert in_flight.covers_remaining()  # each of the two commits at least two tokens


def test_rounds_need_pages_for_full_acceptance() -> None:
    engine = _engine(RoundShape(1, 4))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    in_flight = InFlightRounds.start(RoundShape(1, 4), [work])
    held = len(work.sequence.pages) * engine.config.page_size
    assert in_flight.has_pages(engine.config.page_size, 64) == (held >= work.end + 4)
    assert not in_flight.has_pages(engine.config.page_size, 1)
    in_flight.queued.extend([(torch.zeros(1), lambda: None)] * 20)
    assert not in_flight.has_pages(engine.config.page_size, 64)
