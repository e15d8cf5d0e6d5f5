"""The table of decoders."""

from __future__ import annotations

import pytest

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import ADAPTER_DECODERS
from quicksilver.diffusion.decoders import make_decoder, noise_step


@pytest.mark.parametrize("name", ADAPTER_DECODERS)
def test_every_name_has_a_decoder_whose_canvas_fits_the_limit(name: DecoderName) -> None:
    decoder = make_decoder(DecoderParams(name, canvas_len=8))
    canvas = decoder.open(3)
    assert len(canvas.token_ids) == (1 if name is DecoderName.AR else 3)
    assert len(decoder.tail(canvas).token_ids) == len(canvas.token_ids) - 1


@pytest.mark.parametrize("name", DecoderName)
def test_only_decoders_that_revisit_a_position_draw_new_noise_per_step(name: DecoderName) -> None:
    revisits = name in (DecoderName.CONFIDENCE, DecoderName.EDIT, DecoderName.WINDOW, DecoderName.CANVAS)
    assert [noise_step(DecoderParams(name), step) for step in (0, 1, 7)] == ([0, 1, 7] if revisits else [0, 0, 0])
