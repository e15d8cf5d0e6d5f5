"""Plausible strings by property name and schema."""

from __future__ import annotations

import random
import re

import pytest

from quicksilver.training.synthesis.values import FORMATS, string_value


@pytest.mark.parametrize(
    ("name", "schema", "pattern"),
    [
        ("homepageUrl", {}, r"https://example\.com/\w+"),
        ("x", {"format": "uuid"}, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("version", {}, r"\d+\.\d+\.\d+"),
        ("name", {"default": "stated"}, "stated"),
        ("title", {"maxLength": 4}, ".{1,4}"),
        ("q", {"minLength": 30}, ".{30,60}"),
    ],
)
def test_values_suit_the_name_and_the_schema(name: str, schema: dict[str, object], pattern: str) -> None:
    for seed in range(20):
        assert re.fullmatch(pattern, string_value(name, schema, random.Random(seed)))


def test_every_format_yields_text() -> None:
    assert all(draw(random.Random(0)) for draw in FORMATS.values())
