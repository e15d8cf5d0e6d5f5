"""The query of lists of stored objects."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from quicksilver.server.http.list_query import DEFAULT_LISTED, MAX_LISTED, AscendingQuery, ListQuery


def test_defaults_are_those_of_openai() -> None:
    query = ListQuery.model_validate({})
    assert (query.limit, query.after, query.order) == (DEFAULT_LISTED, "", "desc")
    assert AscendingQuery.model_validate({}).order == "asc"


def test_a_limit_of_zero_counts_as_absent() -> None:
    assert ListQuery.model_validate({"limit": "0"}).limit == DEFAULT_LISTED


def test_other_names_are_ignored() -> None:
    assert ListQuery.model_validate({"include": "x", "limit": "3"}).limit == 3


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"limit": str(MAX_LISTED)}, {"limit": str(MAX_LISTED + 1)}),
        ({"limit": "1"}, {"limit": "-1"}),
        ({"limit": "1"}, {"limit": "many"}),
        ({"after": "a" * 256}, {"after": "a" * 257}),
        ({"order": "asc"}, {"order": "random"}),
    ],
)
def test_values_beyond_their_bounds_are_refused(good: dict[str, str], bad: dict[str, str]) -> None:
    assert ListQuery.model_validate(good)
    with pytest.raises(ValidationError):
        ListQuery.model_validate(bad)
