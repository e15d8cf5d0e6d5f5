"""The OpenAPI document."""

from __future__ import annotations

from tests.server.conftest import Served

# These take an empty body or a form.
WITHOUT_JSON = (
    "/v1/responses/{response_id}/cancel",
    "/v1/batches/{batch_id}/cancel",
    "/v1/files",
    *(f"/v1/fine_tuning/jobs/{{job_id}}/{action}" for action in ("cancel", "pause", "resume")),
)


async def test_the_document_has_every_served_path_and_body(served: Served) -> None:
    document = (await served.get("/openapi.json")).json()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/models/{name}", "/v1/tokenize", "/feedback", "/ready"):
        assert path in document["paths"]
    for path, operations in document["paths"].items():
        if "post" in operations and path not in WITHOUT_JSON:
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            name = schema["$ref"].rsplit("/", 1)[-1]
            assert name in document["components"]["schemas"], path
