"""Model lists in Anthropic's form."""

from __future__ import annotations

from tests.server.conftest import Served

VERSION = {"anthropic-version": "2023-06-01"}


async def test_the_header_selects_the_form_of_the_list(served: Served) -> None:
    plain = (await served.get("/v1/models")).json()
    listed = (await served.get("/v1/models", VERSION)).json()
    assert [model["id"] for model in listed["data"]] == [model["id"] for model in plain["data"]]
    assert (listed["first_id"], listed["has_more"]) == (plain["data"][0]["id"], False)
    assert {model["type"] for model in listed["data"]} == {"model"}
    one = (await served.get("/v1/models/nano", VERSION)).json()
    assert one in listed["data"]
    assert one["created_at"].endswith("Z")
    assert (await served.get("/v1/models/none", VERSION)).status_code == 404
