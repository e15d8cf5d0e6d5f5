"""The table of decoders: `DecoderParams` -> `Decoder`. A new decoder is one module and one line here."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.canvas import CanvasDecoder
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoder import Decoder
from quicksilver.diffusion.edit import Edit
from quicksilver.diffusion.verify import Verify
from quicksilver.diffusion.window import Window


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
