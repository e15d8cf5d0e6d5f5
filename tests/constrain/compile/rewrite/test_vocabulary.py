"""Keywords by draft, and the subschemas of a schema."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.rewrite.vocabulary import Draft, declared_draft, is_known, subschemas


@pytest.mark.parametrize(
    ("word", "draft", "known"),
    [
        ("type", Draft.FOUR, True),
        ("const", Draft.FOUR, False),
        ("const", Draft.SIX, True),
        ("if", Draft.SIX, False),
        ("prefixItems", Draft.Y2019, False),
        ("dependencies", Draft.SEVEN, True),
        ("dependencies", Draft.Y2019, False),
    ],
)
def test_keywords_exist_in_some_drafts(word: str, draft: Draft, known: bool) -> None:
    assert is_known(word, draft) is known


def test_the_declared_draft() -> None:
    assert declared_draft({"$schema": "http://json-schema.org/draft-07/schema#"}) is Draft.SEVEN
    assert declared_draft({"$schema": "https://json-schema.org/draft/2020-12/schema"}) is Draft.Y2020
    assert declared_draft({"$schema": "https://example.com/own"}) is None
    assert declared_draft({"$schema": 7}) is None
    assert declared_draft(True) is None


def test_subschemas_have_json_pointers() -> None:
    schema = {"properties": {"a/b": True}, "anyOf": [False], "not": {}, "enum": [{}], "items": [True]}
    expected = {"/properties/a~1b": True, "/anyOf/0": False, "/not": {}, "/items/0": True}
    assert dict(subschemas(schema)) == expected
    assert list(subschemas(True)) == []
