"""The OpenAPI document."""

from __future__ import annotations

from tests.server.conftest import Served


async def test_the_document_has_every_served_path_and_body(served: Served) -> None:
    document = (await served.get("/openapi.json")).json()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/models/{name}", "/v1/tokenize", "/feedback", "/ready"):
        assert path in document["paths"]
    for path, operations in document["paths"].items():
        if "post" in operations:
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            name = schema["$ref"].rsplit("/", 1)[-1]
            assert name in document["components"]["schemas"], path
