"""The record of a decoder's parameters."""

from __future__ import annotations

import copy

import pytest

from quicksilver.decoder_params import CommitRule, DecoderName, DecoderParams
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
