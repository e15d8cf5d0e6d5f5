"""The envelope of an error in each API, the headers about retries, and the place of an invalid field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from quicksilver.errors import (
    ContextTooLong,
    InsufficientQuota,
    InvalidRequest,
    NotFound,
    QuicksilverError,
    RateLimited,
    Unavailable,
)
from quicksilver.server.http.body import validate
from quicksilver.server.http.errors import (
    MAX_MESSAGE_CHARS,
    MAX_RETRY_AFTER_S,
    MAX_STEP_CHARS,
    RequestTimeout,
    envelope_for,
    error_response,
    internal_error,
    param_path,
    retry_headers,
)
from tests.server.conftest import Served

HI = [{"role": "user", "content": "Hi"}]


class Part(BaseModel):
    text: str


class Body(BaseModel):
    parts: list[Part | int] = []
    labels: dict[str, int] = {}


def refusal_of(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        validate(Body, body)
    return raised.value


OPENAI = {
    "message": "Too long.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "Too long."}}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"error": OPENAI}),
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/api/chat", {"error": "Too long."}),
    ],
)
def test_the_path_decides_the_envelope(path: str, expected: dict[str, Any]) -> None:
    assert envelope_for(path, ContextTooLong("Too long.", param="messages")) == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/chat"])
def test_a_message_is_cut_to_its_bound(path: str) -> None:
    reply = error_response(InvalidRequest("a" * 10 * MAX_MESSAGE_CHARS), path=path)
    assert bytes(reply.body).count(b"a" * MAX_MESSAGE_CHARS) == 1
    assert len(reply.body) < MAX_MESSAGE_CHARS + 200


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("x"), "not_found_error"),
        (RateLimited("x"), "rate_limit_error"),
        (Unavailable("x"), "overloaded_error"),
        (internal_error(), "api_error"),
        (RequestTimeout("x"), "invalid_request_error"),
    ],
)
def test_anthropic_names_errors_by_status(error: QuicksilverError, kind: str) -> None:
    assert envelope_for("/v1/messages", error)["error"]["type"] == kind


def test_headers_state_whether_and_when_to_retry() -> None:
    assert retry_headers(Unavailable("x", retry_after_s=2.1)) == {"retry-after": "3", "x-should-retry": "true"}
    assert retry_headers(RateLimited("x", retry_after_s=1e9))["retry-after"] == str(MAX_RETRY_AFTER_S)
    assert retry_headers(RateLimited("x", retry_after_s=0.0))["retry-after"] == "1"
    assert retry_headers(InsufficientQuota("x")) == {"x-should-retry": "false"}
    assert retry_headers(InvalidRequest("x")) == {"x-should-retry": "false"}
    assert retry_headers(RequestTimeout("x")) == retry_headers(internal_error()) == {"x-should-retry": "true"}


def test_a_body_that_is_still_arriving_closes_the_connection() -> None:
    assert error_response(RequestTimeout("x")).headers["connection"] == "close"
    assert "connection" not in error_response(InvalidRequest("x")).headers


def test_an_internal_error_has_no_detail_of_the_exception() -> None:
    reply = error_response(internal_error())
    assert reply.status_code == 500
    assert orjson.loads(reply.body)["error"]["message"] == "The server had an error while processing your request."


def test_the_place_of_an_invalid_field_has_no_names_of_union_branches() -> None:
    error = refusal_of({"parts": [1, {"text": 2}]})
    assert (error.param, error.message) == ("parts.1.text", "parts.1.text: Input should be a valid string")


def test_a_missing_field_is_named() -> None:
    assert refusal_of({"parts": [{}]}).param == "parts.0.text"


def test_a_long_key_is_cut_in_the_place_of_an_error() -> None:
    error = refusal_of({"labels": {"k" * 10_000: "no number"}})
    assert error.param == f"labels.{'k' * MAX_STEP_CHARS}"


def test_steps_that_are_not_in_the_body_are_left_out() -> None:
    assert param_path(("parts", 3, "Part", "text"), {"parts": [1]}) == "parts"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/chat/completions", {"messages": HI, "stop": ["x"] * 5}, "stop: List should have at most 4 items"),
        ("/v1/completions", {"prompt": ["x"] * 33}, "prompt: List should have at most 32 items"),
        ("/v1/completions", {"prompt": [[1]] * 33}, "prompt: List should have at most 32 items"),
        ("/v1/chat/completions", {"messages": HI, "stop": []}, None),
        ("/v1/chat/completions", {"messages": HI, "stop": ["x", 3]}, "stop.1: Input should be a valid string"),
        ("/v1/chat/completions", {"messages": HI, "stop": ""}, "stop: String should have at least 1 character"),
        (
            "/v1/chat/completions",
            {"messages": HI, "tool_choice": {"type": "function", "function": {"name": 3}}},
            "tool_choice.function.name: Input should be a valid string",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 65}]},
            "messages.0.content: List should have at most 64 items",
        ),
        ("/v1/responses", {"input": [HI[0]] * 2049}, "input: List should have at most 2048 items"),
    ],
)
async def test_of_a_union_the_branch_that_fits_is_named(
    served: Served, path: str, fields: dict[str, Any], message: str | None
) -> None:
    reply = (await served.post(path, fields)).json()
    assert message is None or reply["error"]["message"].startswith(message)
    assert ("error" in reply) is (message is not None)
