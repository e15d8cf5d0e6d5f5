"""Conjunctions and unions of rewritten schemas."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.rewrite.algebra import all_of, any_of
from quicksilver.constrain.compile.rewrite.vocabulary import Json

TEXT: Json = {"type": "string"}
LONG: Json = {"minLength": 3}
OPEN: Json = {"properties": {"a": True}}
CLOSED: Json = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([], True),
        ([True, True], True),
        ([TEXT, False], False),
        ([TEXT, True], TEXT),
        ([TEXT, LONG], {"type": "string", "minLength": 3}),
        ([TEXT, {"type": "null"}], {"allOf": [TEXT, {"type": "null"}]}),
        ([OPEN, CLOSED], {"allOf": [OPEN, CLOSED]}),
    ],
)
def test_conjunctions(parts: list[Json], joined: Json) -> None:
    assert all_of(parts) == joined


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([], False),
        ([False, False], False),
        ([TEXT, True], True),
        ([TEXT, False], TEXT),
        ([TEXT, LONG], {"anyOf": [TEXT, LONG]}),
        ([{"anyOf": [TEXT, LONG]}, OPEN], {"anyOf": [TEXT, LONG, OPEN]}),
    ],
)
def test_unions(parts: list[Json], joined: Json) -> None:
    assert any_of(parts) == joined
