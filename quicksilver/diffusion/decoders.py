"""The decoders of requests: `DecoderParams` -> `Decoder`, and one pass for all requests with the same decoder.

A new decoder is one module and one line here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.blocks import CanvasOrBlock
from quicksilver.diffusion.canvas import CanvasDecoder
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoder import Canvas, Decision, Decoder
from quicksilver.diffusion.edit import Edit
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import Verify
from quicksilver.diffusion.window import Window

log = logging.getLogger(__name__)


class Decoding(Protocol):
    """A request with its decoder and the canvas that it decodes."""

    @property
    def decoder(self) -> Decoder: ...

    @property
    def canvas(self) -> Canvas | None: ...


AnyDecoding = TypeVar("AnyDecoding", bound=Decoding)


def make_decoder(params: DecoderParams, dialect: Dialect = AUTOREGRESSIVE, seed: int = 0) -> Decoder:
    """`seed` is that of the request; only decoders with random canvases use it. Equal arguments give the same object,
    so that requests with the same decoder can be decided together."""
    return _decoder(params, dialect, seed if params.name is DecoderName.CANVAS else 0)


@lru_cache(maxsize=256)
def _decoder(params: DecoderParams, dialect: Dialect, seed: int) -> Decoder:
    if params.name is DecoderName.AR:
        return Verify(replace(params, canvas_len=1), dialect)
    if params.name is DecoderName.VERIFY:
        return Verify(params, dialect)
    if params.name is DecoderName.CONFIDENCE:
        return Confidence(params, dialect)
    if params.name is DecoderName.WINDOW:
        return Window(params, dialect)
    if params.name is DecoderName.CANVAS:
        return CanvasDecoder(params, dialect, seed)
    return Edit(params, dialect)


def noise_step(params: DecoderParams, canvas_step: int) -> int:
    """The step that keys the sampling noise. It is 0 in `verify`, so draft, verify and plain AR share their noise."""
    return 0 if params.name in (DecoderName.AR, DecoderName.VERIFY) else canvas_step


def decide_together(proposed: Iterable[tuple[AnyDecoding, Proposal]]) -> dict[AnyDecoding, Decision]:
    """The decisions of requests whose decoders are the same object. Requests that are missing are decided one by one:
    those whose decoder no other request has, and those of a pass that failed."""
    groups: dict[int, list[tuple[AnyDecoding, Proposal]]] = {}
    for one, proposal in proposed:
        if isinstance(one.decoder, CanvasOrBlock):
            groups.setdefault(id(one.decoder), []).append((one, proposal))
    decisions: dict[AnyDecoding, Decision] = {}
    for members in groups.values():
        if len(members) > 1:
            decisions |= _decide(members)
    return decisions


def _decide(members: Sequence[tuple[AnyDecoding, Proposal]]) -> dict[AnyDecoding, Decision]:
    requests = [one for one, _ in members]
    decoder, canvases = requests[0].decoder, [one.canvas for one in requests if one.canvas is not None]
    assert isinstance(decoder, CanvasOrBlock)
    try:
        decided = decoder.decide_all(canvases, joined([proposal for _, proposal in members]))
    except Exception:
        log.exception("the decisions of a step failed; each request is decided on its own")
        return {}
    return dict(zip(requests, decided, strict=True))


def joined(proposals: Sequence[Proposal]) -> Proposal:
    """The proposals of several requests, one after the other, as these decoders read them."""
    return Proposal(
        np.concatenate([one.token_ids for one in proposals]),
        np.concatenate([one.confidence for one in proposals]),
        np.concatenate([one.entropy for one in proposals]),
        np.concatenate([one.is_finite for one in proposals]),
    )
