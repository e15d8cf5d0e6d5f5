"""The records of decoders and dialects."""

from __future__ import annotations

import copy

import pytest

from quicksilver.dialect import AUTOREGRESSIVE, CommitRule, ContextKind, DecoderName, DecoderParams, Dialect
from quicksilver.errors import InvalidRequest


def test_names_may_be_strings_and_become_members() -> None:
    params = DecoderParams("ar", rule="entropy")  # type: ignore[arg-type]
    assert params.name is DecoderName.AR
    assert params.rule is CommitRule.ENTROPY
    assert params == DecoderParams(DecoderName.AR, rule=CommitRule.ENTROPY)
    assert hash(params) == hash(DecoderParams(DecoderName.AR, rule=CommitRule.ENTROPY))


@pytest.mark.parametrize(("fields", "param"), [({"name": "fast"}, "decoder"), ({"rule": "all"}, "rule")])
def test_an_unknown_name_is_refused_with_the_known_ones(fields: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DecoderParams(**fields)  # type: ignore[arg-type]
    assert refused.value.param == param
    assert "verify" in refused.value.message or "threshold" in refused.value.message


def test_members_keep_their_identity_in_copies() -> None:
    params = copy.deepcopy(DecoderParams(DecoderName.EDIT))
    assert params.name is DecoderName.EDIT


def test_blocks_begin_at_position_0_or_at_the_end_of_the_prompt() -> None:
    blocks = Dialect(ContextKind.BLOCK, block_len=4)
    assert [blocks.block_start(num_tokens, 3) for num_tokens in (7, 8, 10)] == [4, 8, 8]
    aligned = Dialect(ContextKind.BLOCK, block_len=4, is_prompt_aligned=True)
    assert [aligned.block_start(num_tokens, 3) for num_tokens in (6, 7, 10)] == [3, 7, 7]


def test_the_last_row_of_a_causal_context_is_computed_again() -> None:
    assert AUTOREGRESSIVE.num_kept(5, 5, 2) == 4
    assert Dialect(ContextKind.BLOCK, block_len=4).num_kept(5, 5, 2) == 5


def test_a_decoder_has_its_own_parameters_or_those_of_the_default_one() -> None:
    default, edit = DecoderParams(DecoderName.CONFIDENCE, canvas_len=4), DecoderParams(DecoderName.EDIT, canvas_len=9)
    assert default.for_decoder(DecoderName.EDIT, (edit,)) is edit
    assert default.for_decoder(DecoderName.CONFIDENCE, (edit,)) is default
    assert default.for_decoder(DecoderName.AR, (edit,)) == DecoderParams(DecoderName.AR, canvas_len=4)
