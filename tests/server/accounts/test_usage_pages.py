"""Pages of usage: cursors, limits and the last page."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.accounts.usage_pages import usage_span
from quicksilver.server.accounts.usage_wire import UsageSpanQuery

DAY_S = 86_400


def query(**fields: Any) -> UsageSpanQuery:
    return UsageSpanQuery.model_validate({"start_time": 0, "bucket_width": "1d", **fields})


def test_pages_follow_each_other_up_to_the_end() -> None:
    first = usage_span(query(limit=2, end_time=3 * DAY_S), now=0)
    assert (first.query.start, first.query.end, first.next_page) == (0, 2 * DAY_S, f"page_{2 * DAY_S}")
    second = usage_span(query(limit=2, end_time=3 * DAY_S, page=first.next_page), now=0)
    assert (second.query.start, second.query.end, second.next_page) == (2 * DAY_S, 3 * DAY_S, None)


def test_without_an_end_usage_reaches_to_now() -> None:
    assert usage_span(query(), now=100.5).query.end == 101


@pytest.mark.parametrize(
    "fields",
    [{"limit": 169, "bucket_width": "1h"}, {"page": "page_5"}, {"page": f"page_{9 * DAY_S}", "end_time": DAY_S}],
)
def test_foreign_cursors_and_large_limits_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        usage_span(query(**fields), now=DAY_S)
