"""Proofs about regular expressions."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.rewrite.regular import never_matches, no_string


@pytest.mark.parametrize(
    ("facets", "is_proved"),
    [
        ([{"pattern": "^a+$"}, {"pattern": "^b+$"}], True),
        ([{"pattern": "^a+$"}, {"pattern": "^(a|b)$"}], False),
        ([{"pattern": "^a{3}$"}, {"maxLength": 2}], True),
        ([{"minLength": 3}, {"maxLength": 2}], True),
        ([{"pattern": "^\\s$"}, {"pattern": "^a$"}], False),
    ],
)
def test_strings_that_satisfy_no_facets(facets: list[dict[str, object]], is_proved: bool) -> None:
    assert no_string(facets) is is_proved


def test_texts_that_do_not_match() -> None:
    assert never_matches("^a+$", "b")
    assert not never_matches("^a+$", "aa")
    assert not never_matches("^\\bx", "y")
