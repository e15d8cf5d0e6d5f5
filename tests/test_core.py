"""Shared types: help texts of settings, and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, help_texts, setting
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig


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
