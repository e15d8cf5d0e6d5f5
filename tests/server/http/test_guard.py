"""Every path is answered in the error envelope."""

from __future__ import annotations

import pytest

from tests.server.conftest import Served

EDIT = "/v1/edit/completions"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "//v1/models", "/v1/..;/models", "/V1/models", "/metrics"])
async def test_unknown_paths_have_the_envelope(served: Served, path: str) -> None:
    response = await served.get(path)
    if path == "/":
        assert response.status_code == 200
        return
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_are_a_405_that_names_the_right_one(served: Served, method: str) -> None:
    async with served.client() as client:
        response = await client.request(method, EDIT)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


async def test_a_405_names_every_method_of_the_path(served: Served) -> None:
    async with served.client() as client:
        response = await client.request("PUT", "/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST, GET")
