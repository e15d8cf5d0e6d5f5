"""Flights over a device that is played: it knows the model's text, and its drafts are right more often than not."""

from __future__ import annotations

import random

import pytest
import torch

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.inflight import Flight, RoundShape, fits, is_draft, is_verification, one_forward
from quicksilver.core import Delta, Request, Usage
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from tests.support.tiny import decode_params, generate, tiny_engine

PROMPT = tuple(range(5, 25))
LONGEST = 40
SHAPES = [RoundShape(1, 1), RoundShape(1, 4), one_forward(1, 4), RoundShape(1, 8), one_forward(1, 8)]


class Played:
    """Runs the first forward for real, then rounds of one shape: the device's state is its own, not the host's."""

    def __init__(self, engine: Engine, shape: RoundShape, text: list[int]) -> None:
        self.plain, self.shape, self.text = engine.backend.run, shape, text
        self.flight: Flight | None = None
        self.num_flights = self.num_plain = 0
        self._end, self._draft = 0, list[int]()
        self._rng = random.Random(0)

    def run(self, works: list[Work]) -> list[Outcome | None]:
        if self.flight is not None and not self.flight.expects(works):
            self.flight = None
        if self.flight is None:
            if not self.shape.takes(works):
                self.num_plain += 1
                return self.plain(works)
            self.flight = Flight.of(self.shape, works)
            self.num_flights += 1
            self._end, self._draft = self.flight.ends[0], list(self.flight.drafts[0])
        return list(self.flight.take(works, self._forward()))

    def _forward(self) -> Proposal:
        """What one forward proposes, and what that makes of the state."""
        own, had_draft = self._front(self._end, self.shape.canvas_len), bool(self._draft)
        accepted = 0
        while accepted < len(self._draft) and own[accepted] == self._draft[accepted]:
            accepted += 1
        sets = [self._guess(self._end + a + 1) for a in range(self.shape.num_sets)]
        if self.shape.num_sets:
            self._draft = sets[accepted]
        elif had_draft:
            self._draft = []
        else:
            self._draft = self._guess(self._end + 1)
            own = own[:1] + self._draft
        self._end += accepted + 1
        return _proposal(own + [token for draft in sets for token in draft])

    def _front(self, start: int, count: int) -> list[int]:
        return self.text[start : start + count]

    def _guess(self, start: int) -> list[int]:
        true = self._front(start, self.shape.canvas_len - 1)
        return [token if self._rng.random() < 0.8 else (token + 1) % 30 for token in true]


def _proposal(tokens: list[int]) -> Proposal:
    ones = torch.ones(len(tokens))
    return Proposal(torch.tensor(tokens), ones, ones, ones.bool())


def _engine(shape: RoundShape) -> Engine:
    return tiny_engine(EngineConfig(num_pages=64, max_rows=96))


def _fly(shape: RoundShape, count: int, text: list[int]) -> tuple[Played, list[int], Usage]:
    engine = _engine(shape)
    played = Played(engine, shape, text)
    engine.backend.run = played.run  # type: ignore[method-assign, assignment]
    name = "ar" if shape.canvas_len == 1 else "verify"
    engine.add(Request("0", PROMPT, decode_params(name, canvas_len=shape.canvas_len, max_new_tokens=count)))
    said: list[int] = []
    last = None
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            said += event.token_ids
            last = event.usage
    assert last is not None
    return played, said, last


@pytest.fixture(scope="module")
def text() -> list[int]:
    """The prompt and more of the model's own text than any answer here takes."""
    params = decode_params("ar", canvas_len=1, max_new_tokens=LONGEST + 20)
    return [*PROMPT, *generate(_engine(RoundShape(1, 1)), PROMPT, params)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_flight_begins_behind_the_prompt_and_lasts_to_the_end_of_the_answer(
    shape: RoundShape, text: list[int]
) -> None:
    """Whatever is left of the answer when its last rounds begin, nothing but the prompt runs outside the flight."""
    for count in range(2, LONGEST):
        played, said, usage = _fly(shape, count, text)
        assert said == text[len(PROMPT) : len(PROMPT) + count]
        assert (played.num_plain, played.num_flights) == (1, 1), count
        assert 0 <= usage.forwards + usage.accepted - usage.completion_tokens <= 1, usage


def test_a_round_of_one_forward_takes_over_the_draft_that_came_with_the_prompt(text: list[int]) -> None:
    """No forward but the first only drafts; the last may have a single token left, which is no round."""
    usages = [_fly(one_forward(1, 8), count, text)[2] for count in range(10, 30)]
    assert {usage.forwards - usage.rounds for usage in usages} == {1, 2}


def test_a_request_that_asks_for_something_else_is_not_expected(text: list[int]) -> None:
    engine, shape = _engine(RoundShape(1, 4)), RoundShape(1, 4)
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    flight = Flight.of(shape, [work])
    assert is_verification(work)
    assert not is_draft(work)
    assert flight.half == 1
    assert flight.expects([work])
    assert not flight.expects([])
    flight.drafts[0] = tuple(token + 1 for token in flight.drafts[0])
    assert not flight.expects([work])
    flight.drafts[0] = ()
    assert not flight.expects([work])


def test_a_canvas_is_shorter_than_the_graphs_only_where_the_answer_ends() -> None:
    engine = _engine(RoundShape(1, 8))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    assert fits(work, 4)
    assert not fits(work, 8)
    assert not RoundShape(1, 8).takes([work])
    work.sequence.tokens += [1] * (work.sequence.room - 3)
    assert fits(work, 8)


def test_no_round_is_launched_behind_the_last(text: list[int]) -> None:
    engine = _engine(RoundShape(1, 4))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=5)))
    engine.step()
    (work,) = engine.scheduler.plan()
    flight = Flight.of(RoundShape(1, 4), [work])
    assert not flight.is_enough()  # one token of five is there
    flight.rounds.append((torch.zeros(1), lambda: None))
    assert not flight.is_enough()
    flight.rounds.append((torch.zeros(1), lambda: None))
    assert flight.is_enough()  # each of the two commits two at least


def test_a_flight_needs_pages_for_all_it_may_accept() -> None:
    engine = _engine(RoundShape(1, 4))
    engine.add(Request("0", PROMPT, decode_params("verify", canvas_len=4, max_new_tokens=30)))
    engine.step()
    (work,) = engine.scheduler.plan()
    flight = Flight.of(RoundShape(1, 4), [work])
    held = len(work.sequence.pages) * engine.config.page_size
    assert flight.has_pages(engine.config.page_size, 64) == (held >= work.end + 4)
    assert not flight.has_pages(engine.config.page_size, 1)
    flight.rounds.extend([(torch.zeros(1), lambda: None)] * 20)
    assert not flight.has_pages(engine.config.page_size, 64)
