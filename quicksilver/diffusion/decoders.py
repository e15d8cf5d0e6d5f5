"""The table of decoders: `DecoderParams` -> `Decoder`. A new decoder is one module and one line here."""

from __future__ import annotations

from dataclasses import replace

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoder import Decoder
from quicksilver.diffusion.edit import Edit
from quicksilver.diffusion.verify import Verify


def make_decoder(params: DecoderParams) -> Decoder:
    if params.name is DecoderName.AR:
        return Verify(replace(params, canvas_len=1))
    if params.name is DecoderName.VERIFY:
        return Verify(params)
    if params.name is DecoderName.CONFIDENCE:
        return Confidence(params)
    return Edit(params)


def noise_step(params: DecoderParams, canvas_step: int) -> int:
    """The step that keys the sampling noise. It is 0 in `verify`, so draft, verify and plain AR share their noise."""
    return canvas_step if params.name in (DecoderName.CONFIDENCE, DecoderName.EDIT) else 0
