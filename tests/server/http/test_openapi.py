"""The OpenAPI document."""

from __future__ import annotations

from dataclasses import fields

import pytest

from quicksilver.core import DecoderParams
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


@pytest.mark.parametrize("name", ["ChatBody", "DecoderBody"])
async def test_every_field_of_a_chat_and_of_a_decoder_is_described(served: Served, name: str) -> None:
    schema = (await served.get("/openapi.json")).json()["components"]["schemas"][name]
    assert len(schema["properties"]) > 10
    assert [field for field, facts in schema["properties"].items() if not facts.get("description")] == []
    for facts in schema["properties"].values():
        assert facts["description"].endswith(".")


async def test_described_defaults_of_a_decoder_are_those_of_its_parameters(served: Served) -> None:
    schema = (await served.get("/openapi.json")).json()["components"]["schemas"]["DecoderBody"]
    for parameter in fields(DecoderParams):
        if isinstance(parameter.default, int | float):
            described = schema["properties"][parameter.name]["description"]
            assert f"Default: {parameter.default:g}" in described
