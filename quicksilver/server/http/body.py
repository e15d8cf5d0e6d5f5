"""A request body from the socket to a checked wire model: size first, then JSON, then fields.

Parsed once and never again: NaN, lone surrogates and malformed UTF-8 are refused by the parser; of a key that
comes twice the last wins. Large bodies are parsed off the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from quicksilver.errors import BodyTooLarge, InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.errors import RequestTimeout, invalid_body
from quicksilver.server.http.fields import Wire

BodyType = TypeVar("BodyType", bound=Wire)

OFF_LOOP_BYTES = 64 * 2**10


async def read_body(request: Request, model: type[BodyType], config: ServerConfig) -> BodyType:
    """The checked body; its bytes stay in `request.state.raw_body` for whoever must tell two requests apart."""
    raw = request.state.raw_body = await read_bytes(request, config)
    if len(raw) < OFF_LOOP_BYTES:
        return parse_body(raw, model)
    return await asyncio.to_thread(parse_body, raw, model)


async def read_optional_body(request: Request, model: type[BodyType], config: ServerConfig) -> BodyType:
    """Like `read_body`, for bodies whose every field has a default: nothing at all counts as an empty object."""
    raw = await read_bytes(request, config)
    return parse_body(raw or b"{}", model)


async def read_bytes(request: Request, config: ServerConfig) -> bytes:
    """The whole body, never holding more than the cap."""
    check_announced(request, config)
    raw, more = bytearray(), True
    while more:
        message = await _receive(request, config)
        raw += message.get("body", b"")
        more = message.get("more_body", False)
        if len(raw) > config.body_bytes:
            raise _too_large(config)
    return bytes(raw)


def check_announced(request: Request, config: ServerConfig) -> None:
    if request.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise InvalidRequest("Compressed request bodies are not read here; send plain JSON.", param=None)
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced) > config.body_bytes:
        raise _too_large(config)


async def _receive(request: Request, config: ServerConfig) -> dict[str, Any]:
    try:
        message = await asyncio.wait_for(request.receive(), config.timeouts.body_idle_s)
    except TimeoutError:
        raise RequestTimeout(f"No part of the body came for {config.timeouts.body_idle_s:g} s.") from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return dict(message)


def _too_large(config: ServerConfig) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is over {config.body_bytes} bytes.")


def parse_body(raw: bytes, model: type[BodyType]) -> BodyType:
    fields = parse_object(raw)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, fields) from None


def parse_object(raw: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"The body is not valid JSON ({place}).", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return merge_extra(fields)


def merge_extra(fields: dict[str, Any]) -> dict[str, Any]:
    """Mercury's literal `extra_body` field: its content counts as fields, and plain fields win."""
    extra = fields.pop("extra_body", None)
    return {**extra, **fields} if isinstance(extra, dict) else fields
