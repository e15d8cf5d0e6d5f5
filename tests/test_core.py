"""Shared types: help texts of settings, and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

import quicksilver
from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, help_texts, setting
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig
from quicksilver.errors import InvalidRequest


def test_a_setting_has_its_default_and_its_help_text() -> None:
    @dataclass(frozen=True)
    class Config:
        size: int = setting(3, "Number of things.")
        plain: int = 4

    assert Config() == Config(3, 4)
    assert help_texts(Config) == {"size": "Number of things."}


@pytest.mark.parametrize("config", [EngineConfig, LoadConfig])
def test_every_operator_setting_has_a_help_text(config: type) -> None:
    assert help_texts(config).keys() == {field.name for field in fields(config)}
    assert all(text.endswith(".") for text in help_texts(config).values())


def test_the_default_decoder_is_exact_and_greedy() -> None:
    assert DecoderParams().name is DecoderName.VERIFY
    assert DecodeParams().temperature == 0.0


@pytest.mark.parametrize("name", list(DecoderName))
def test_a_decoder_name_given_as_a_string_becomes_the_enum_member(name: DecoderName) -> None:
    assert DecoderParams(name=name.value).name is name  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", list(CommitRule))
def test_a_commit_rule_given_as_a_string_becomes_the_enum_member(rule: CommitRule) -> None:
    assert DecoderParams(rule=rule.value).rule is rule  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "param"), [("name", "decoder"), ("rule", "rule")])
def test_an_unknown_decoder_or_rule_is_refused_by_name(field: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match=f"unknown {param} 'bogus'; the names are: ") as refused:
        DecoderParams(**{field: "bogus"})  # type: ignore[arg-type]
    assert refused.value.param == param


def test_every_public_name_can_be_imported() -> None:
    for name in quicksilver.__all__:
        assert getattr(quicksilver, name) is not None
