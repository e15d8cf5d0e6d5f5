"""One pass of a decoder for all requests of a step that use it."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

import numpy as np

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.diffusion.blocks import CanvasOrBlock
from quicksilver.diffusion.decoder import Decision
from quicksilver.diffusion.sample import Proposal

log = logging.getLogger(__name__)


def decide_together(done: Seq[tuple[Work, Outcome | None]]) -> dict[Sequence, Decision]:
    """The decisions of requests whose decoders are the same object. Requests that are missing are decided one by one:
    those whose decoder no other request has, and those of a pass that failed."""
    groups: dict[int, list[tuple[Sequence, Outcome]]] = {}
    for work, outcome in done:
        if outcome is not None and isinstance(work.sequence.decoder, CanvasOrBlock):
            groups.setdefault(id(work.sequence.decoder), []).append((work.sequence, outcome))
    decisions: dict[Sequence, Decision] = {}
    for members in groups.values():
        if len(members) > 1:
            decisions |= _decide(members)
    return decisions


def _decide(members: Seq[tuple[Sequence, Outcome]]) -> dict[Sequence, Decision]:
    sequences = [sequence for sequence, _ in members]
    decoder, canvases = sequences[0].decoder, [one.canvas for one in sequences if one.canvas is not None]
    assert isinstance(decoder, CanvasOrBlock)
    try:
        decided = decoder.decide_all(canvases, joined([outcome.proposal for _, outcome in members]))
    except Exception:
        log.exception("the decisions of a step failed; each request is decided on its own")
        return {}
    return dict(zip(sequences, decided, strict=True))


def joined(proposals: Seq[Proposal]) -> Proposal:
    """The proposals of several requests, one after the other, as these decoders read them."""
    return Proposal(
        np.concatenate([one.token_ids for one in proposals]),
        np.concatenate([one.confidence for one in proposals]),
        np.concatenate([one.entropy for one in proposals]),
        np.concatenate([one.is_finite for one in proposals]),
    )
