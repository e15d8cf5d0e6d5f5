"""Requests of one step that have the same decoder are decided in one pass."""

from __future__ import annotations

import pytest

from quicksilver.backends.base import Sequence
from quicksilver.core import Request
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoders import decide_together, make_decoder
from quicksilver.diffusion.sample import Proposal
from tests.support.proposals import confident
from tests.support.tiny import decode_params


def proposed(*names: str) -> list[tuple[Sequence, Proposal]]:
    """A request for each decoder with a canvas of 4, and the proposals of a forward."""
    pairs: list[tuple[Sequence, Proposal]] = []
    for name in names:
        params = decode_params(name, canvas_len=4)
        one = Sequence(Request("x", (1, 2, 3), params), make_decoder(params.decoder))
        one.open_canvas()
        pairs.append((one, confident([5, 6, 7, 8])))
    return pairs


def test_equal_decoders_are_one_object_and_decide_together() -> None:
    pairs = proposed("confidence", "verify", "confidence", "edit")
    decided = decide_together(pairs)
    assert list(decided) == [pairs[0][0], pairs[2][0]]
    assert all(decision.commit == [5, 6, 7, 8] for decision in decided.values())


def test_a_pass_that_fails_leaves_its_requests_to_be_decided_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(Confidence, "decide_all", fail)
    assert decide_together(proposed("confidence", "confidence")) == {}
