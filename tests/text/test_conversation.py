"""The arguments of a call as a JSON value."""

from __future__ import annotations

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import MAX_ARGUMENTS_DEPTH, parse_arguments


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, "x"]}', {"a": [1, "x"]}),
        ("", {}),
        (" \n", {}),
        ('{"a": ', '{"a": '),
        ("not json", "not json"),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d"}'),
        ('{"\\udc00": 1}', '{"\\udc00": 1}'),
    ],
)
def test_arguments_are_a_value_or_stay_text(arguments: str, value: object) -> None:
    assert parse_arguments(arguments) == value


def test_deep_nesting_is_refused() -> None:
    parse_arguments("[" * MAX_ARGUMENTS_DEPTH + "]" * MAX_ARGUMENTS_DEPTH)
    for depth in (MAX_ARGUMENTS_DEPTH + 1, 100_000):
        with pytest.raises(InvalidRequest):
            parse_arguments("[" * depth + "]" * depth)
