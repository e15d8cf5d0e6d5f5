"""Query strings: lists in three notations, repeated values, ids."""

from __future__ import annotations

import pytest
from pydantic import ConfigDict, Field
from starlette.requests import Request

from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.accounts.usage_wire import PageQuery, Query
from quicksilver.server.http.query import asks, checked_id, read_query


class Filters(Query):
    names: list[str] = Field(default_factory=list)
    limit: int = 10


def request(query: str) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": query.encode(), "headers": []})


@pytest.mark.parametrize("query", ["names=a&names=b", "names[]=a&names[]=b", "names=a,b"])
def test_lists_may_come_in_three_notations(query: str) -> None:
    assert read_query(request(query), Filters).names == ["a", "b"]


@pytest.mark.parametrize(("query", "named"), [("limit=1&limit=2", "limit"), ("limit=x", "limit")])
def test_wrong_values_are_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_query(request(query), Filters)
    assert refused.value.param == named


def test_the_openapi_document_lists_the_parameters() -> None:
    assert {one["name"] for one in asks(PageQuery)["parameters"]} == set(PageQuery.model_fields)


def test_an_id_of_another_form_is_not_found() -> None:
    assert checked_id("key_" + "0" * 24) == "key_" + "0" * 24
    for text in ("key_" + "0" * 23, "../etc/passwd", "KEY_" + "0" * 24):
        with pytest.raises(NotFound):
            checked_id(text)


class Lenient(Query):
    model_config = ConfigDict(extra="ignore", frozen=True)

    limit: int = 10


@pytest.mark.parametrize("query", ["include=a&include=b&limit=3", "include[]=a&include[]=b&limit=3"])
def test_a_name_that_is_ignored_may_come_several_times(query: str) -> None:
    assert read_query(request(query), Lenient).limit == 3


@pytest.mark.parametrize("query", ["other=1", "other=1&other=2"])
def test_an_unknown_name_is_refused_however_often_it_comes(query: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_query(request(query), Filters)
    assert refused.value.param == "other"
