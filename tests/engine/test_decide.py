"""Requests of one step that have the same decoder are decided in one pass."""

from __future__ import annotations

import pytest

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.core import Request
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.decide import decide_together
from tests.support.proposals import confident
from tests.support.tiny import decode_params


def done(*names: str) -> list[tuple[Work, Outcome | None]]:
    """One forward of a request for each decoder, with a canvas of 4."""
    pairs: list[tuple[Work, Outcome | None]] = []
    for name in names:
        params = decode_params(name, canvas_len=4)
        one = Sequence(Request("x", (1, 2, 3), params), make_decoder(params.decoder))
        one.open_canvas()
        pairs.append((Work(one, 0, 3, one.tail), Outcome(confident([5, 6, 7, 8]), [])))
    return pairs


def test_equal_decoders_are_one_object_and_decide_together() -> None:
    pairs = done("confidence", "verify", "confidence", "edit")
    decided = decide_together(pairs)
    assert list(decided) == [pairs[0][0].sequence, pairs[2][0].sequence]
    assert all(decision.commit == [5, 6, 7, 8] for decision in decided.values())


def test_work_without_an_outcome_is_left_out() -> None:
    pairs = done("confidence", "confidence", "confidence")
    pairs[1] = (pairs[1][0], None)
    assert list(decide_together(pairs)) == [pairs[0][0].sequence, pairs[2][0].sequence]


def test_a_pass_that_fails_leaves_its_requests_to_be_decided_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(Confidence, "decide_all", fail)
    assert decide_together(done("confidence", "confidence")) == {}
