"""Every refusal as OpenAI's error envelope, with the headers that tell a client whether to try again.

No other shape leaves this server: framework errors, unknown paths and unforeseen exceptions are translated here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from quicksilver.errors import (
    InsufficientQuota,
    InvalidRequest,
    NotFound,
    QuicksilverError,
    RateLimited,
    Unavailable,
)

JSON = "application/json"
MAX_RETRY_AFTER_S = 60
MAX_MESSAGE_CHARS = 2000


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
    """The Host header names somebody else: a rebound name, or a missing `--host-name`."""

    status = 421
    type = "invalid_request_error"
    code = "host_not_served"


class MethodNotAllowed(QuicksilverError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


def envelope(error: QuicksilverError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message[:MAX_MESSAGE_CHARS],
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def internal_error() -> QuicksilverError:
    """What a caller is told of a fault of ours: nothing of its inside."""
    return QuicksilverError("The server had an error while processing your request.")


def retry_headers(error: QuicksilverError) -> dict[str, str]:
    """`openai` and its kin obey these before their own rules."""
    if isinstance(error, RateLimited | Unavailable):
        wait_s = min(max(1, math.ceil(error.retry_after_s)), MAX_RETRY_AFTER_S)
        return {"retry-after": str(wait_s), "x-should-retry": "true"}
    if isinstance(error, InsufficientQuota):
        return {"x-should-retry": "false"}
    return {"x-should-retry": "true" if error.status in (408, 409) or error.status >= 500 else "false"}


def error_response(error: QuicksilverError, headers: Mapping[str, str] | None = None) -> Response:
    # The rest of a body that is too large or too slow may still be coming; it is not waited for.
    closing = {"connection": "close"} if error.status in (408, 413) else {}
    said = {**retry_headers(error), **closing, **(headers or {})}
    return Response(orjson.dumps(envelope(error)), error.status, said, media_type=JSON)


def invalid_body(error: ValidationError, body: Any) -> InvalidRequest:
    """The deepest of pydantic's findings: in a union that is the branch the caller meant."""
    found = max(error.errors(include_url=False, include_input=False, include_context=False), key=_depth)
    param = param_path(found["loc"], body)
    message = found["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{param}: {message}" if param else message, param=param or None)


def _depth(found: Mapping[str, Any]) -> int:
    return len(found["loc"])


def param_path(loc: Sequence[int | str], body: Any) -> str:
    """`messages.0.content`: the steps of `loc` that exist in the body, without pydantic's names of union branches."""
    steps, node = [], body
    for i, step in enumerate(loc):
        if isinstance(node, dict) and (step in node or (i == len(loc) - 1 and _is_missing(step, node))):
            steps.append(str(step))
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            steps.append(str(step))
            node = node[step]
    return ".".join(steps)


def _is_missing(step: int | str, node: Mapping[str, Any]) -> bool:
    return isinstance(step, str) and step not in node and step.isidentifier()


def add_refusals(app: FastAPI) -> None:
    """From here on the app says no in the envelope only."""
    app.add_exception_handler(QuicksilverError, _on_refusal)
    app.add_exception_handler(HTTPException, _on_framework_refusal)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, QuicksilverError)
    return error_response(error)


async def _on_framework_refusal(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound("There is nothing at this path."))
    if error.status_code == 405:
        return error_response(MethodNotAllowed("This path takes another method."), _allowed(request, error))
    return error_response(InvalidRequest(str(error.detail)))


def _allowed(request: Request, error: HTTPException) -> Mapping[str, str]:
    """`Allow` with every method of the path; the framework only knows those of the first route it found."""
    path = getattr(request.scope.get("route"), "path", "").replace(":path}", "}")
    methods = request.app.openapi()["paths"].get(path)
    return {"allow": ", ".join(method.upper() for method in methods)} if methods else error.headers or {}
