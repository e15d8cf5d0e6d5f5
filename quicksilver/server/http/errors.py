"""Errors as the error envelope of the request's API, with the headers that tell a client whether to retry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired

import orjson
from pydantic import ValidationError
from starlette.responses import Response
from typing_extensions import TypedDict

from quicksilver.errors import (
    InsufficientQuota,
    InvalidRequest,
    QuicksilverError,
    RateLimited,
    Unavailable,
)

JSON = "application/json"
MAX_RETRY_AFTER_S = 60
MAX_MESSAGE_CHARS = 2000
# Most characters of one step of a path such as `messages.0.content`: a step may be a key that the client chose.
MAX_STEP_CHARS = 64


class RequestTimeout(QuicksilverError):
    """The body stopped arriving."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class HeadersTooLarge(QuicksilverError):
    """The request head is over its bounds."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class HostNotServed(QuicksilverError):
    """The Host header names another server: DNS rebinding, or a missing `--allow-host`."""

    status = 421
    type = "invalid_request_error"
    code = "host_not_served"


class MethodNotAllowed(QuicksilverError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    error: ErrorDetail


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str


class AnthropicErrorReply(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    # Not inside a stream.
    request_id: NotRequired[str]


def envelope(error: QuicksilverError, request_id: str | None = None) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message[:MAX_MESSAGE_CHARS],
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


# By status; any other status of 500 and above is an `api_error`.
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def anthropic_envelope(error: QuicksilverError, request_id: str | None = None) -> dict[str, Any]:
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    if isinstance(error, InsufficientQuota):
        kind = "billing_error"
    reply = {"type": "error", "error": {"type": kind, "message": error.message[:MAX_MESSAGE_CHARS]}}
    return {**reply, "request_id": request_id} if request_id else reply


def ollama_envelope(error: QuicksilverError, request_id: str | None = None) -> dict[str, Any]:
    return {"error": error.message[:MAX_MESSAGE_CHARS]}


# Path prefixes whose errors have another envelope than OpenAI's.
ENVELOPES: dict[str, Callable[[QuicksilverError, str | None], dict[str, Any]]] = {
    "/v1/messages": anthropic_envelope,
    "/api/": ollama_envelope,
}


def envelope_for(path: str, error: QuicksilverError, request_id: str | None = None) -> dict[str, Any]:
    write = next((write for prefix, write in ENVELOPES.items() if path.startswith(prefix)), envelope)
    return write(error, request_id)


def internal_error() -> QuicksilverError:
    """The error of an unexpected exception, without any detail of it."""
    return QuicksilverError("The server had an error while processing your request.")


def retry_headers(error: QuicksilverError) -> dict[str, str]:
    """Clients such as `openai` follow these headers before their own retry rules."""
    if isinstance(error, RateLimited | Unavailable):
        wait_s = min(max(1, math.ceil(error.retry_after_s)), MAX_RETRY_AFTER_S)
        return {"retry-after": str(wait_s), "x-should-retry": "true"}
    if isinstance(error, InsufficientQuota):
        return {"x-should-retry": "false"}
    return {"x-should-retry": "true" if error.status in (408, 409) or error.status >= 500 else "false"}


def error_response(
    error: QuicksilverError,
    headers: Mapping[str, str] | None = None,
    path: str = "",
    request_id: str | None = None,
) -> Response:
    """`path` is that of the request, which decides the envelope."""
    # The rest of a body that is too large or too slow may still be on its way.
    closing = {"connection": "close"} if error.status in (408, 413) else {}
    all_headers = {**retry_headers(error), **closing, **(headers or {})}
    return Response(orjson.dumps(envelope_for(path, error, request_id)), error.status, all_headers, media_type=JSON)


def invalid_body(error: ValidationError, body: Any) -> InvalidRequest:
    """The error of pydantic that names the fault best."""
    found = max(error.errors(include_url=False, include_input=False, include_context=False), key=_fit)
    param = param_path(found["loc"], body)
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        message = f"unknown field {str(found['loc'][-1])[:MAX_STEP_CHARS]!r}; GET /openapi.json lists the fields"
    return InvalidRequest(f"{param}: {message}" if param else message, param=param or None)


def _fit(found: Mapping[str, Any]) -> tuple[bool, int, bool]:
    """In a union the error of the branch that matches best: a list of the right kind that is too long, then the deepest
    error, then one that is not about the type, such as `string_type` of a list."""
    kind = found["type"]
    return kind in ("too_long", "too_short"), len(found["loc"]), not kind.endswith("_type")


def param_path(loc: Sequence[int | str], body: Any) -> str:
    """`messages.0.content`: the steps of `loc` that exist in the body, without pydantic's names of union branches."""
    steps, node = [], body
    for i, step in enumerate(loc):
        if isinstance(node, dict) and (step in node or (i == len(loc) - 1 and _is_missing(step, node))):
            steps.append(str(step)[:MAX_STEP_CHARS])
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            steps.append(str(step)[:MAX_STEP_CHARS])
            node = node[step]
    return ".".join(steps)


def _is_missing(step: int | str, node: Mapping[str, Any]) -> bool:
    return isinstance(step, str) and step not in node and step.isidentifier()
