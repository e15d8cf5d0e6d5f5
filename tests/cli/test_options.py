"""Options that several commands share."""

from __future__ import annotations

from quicksilver.cli.options import decode_params, for_model
from quicksilver.core import DecoderName
from tests.support.dialects import dialect_engine, tiny_dialect


def test_a_checkpoint_that_cannot_verify_decodes_with_its_own_decoder() -> None:
    params = decode_params(9, 0.5, 1, DecoderName.VERIFY, 8)
    for name in ("sdar", "diffusion-gemma"):
        found = for_model(params, dialect_engine(name).info)
        assert found.decoder == tiny_dialect(name).default
        assert (found.max_new_tokens, found.temperature, found.seed) == (9, 0.5, 1)


def test_a_named_decoder_and_the_canvas_of_verify_stay() -> None:
    edit = decode_params(9, 0.5, 1, DecoderName.EDIT, 8)
    assert for_model(edit, dialect_engine("sdar").info) == edit
    verify = decode_params(9, 0.5, 1, DecoderName.VERIFY, 8)
    assert for_model(verify, dialect_engine("nemotron-labs-diffusion").info) is verify
