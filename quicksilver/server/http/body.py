"""A request body from the socket to a checked wire model: size first, then JSON, then fields.

Parsed once and never again: NaN, lone surrogates and malformed UTF-8 are refused by the parser; of a key that
comes twice the last wins. Large bodies are parsed off the event loop. A body that sets a field of another server that
changes the answer and cannot be honoured here is refused; any other unknown field is ignored with a warning.

Every route whose body names a model begins with `read_for_model`, and passes the Services on: the reply is generated
and charged by that model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from quicksilver.errors import BodyTooLarge, InvalidRequest
from quicksilver.server.config import ServerConfig, Timeouts
from quicksilver.server.http.errors import RequestTimeout, invalid_body
from quicksilver.server.http.fields import GenerationBody, ModelBody, Wire
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.sse import while_connected
from quicksilver.server.models import RouteKind
from quicksilver.server.services import Services, services_of

BodyType = TypeVar("BodyType", bound=Wire)
Parsed = TypeVar("Parsed")
Checked = TypeVar("Checked", bound=BaseModel)

OFF_LOOP_BYTES = 64 * 2**10
MAX_JSON_VALUES = 200_000
# One at a time: a parser holds the interpreter lock, so two would make the event loop wait twice as long.
_parser = ThreadPoolExecutor(1, thread_name_prefix="parse-body")


async def read_body(
    request: Request, model: type[BodyType], config: ServerConfig, max_bytes: int | None = None
) -> BodyType:
    """The checked body."""
    raw = await read_bytes(request, config, max_bytes)
    return await off_loop(len(raw), lambda: parse_body(raw, model))


async def off_loop(num_bytes: int, parse: Callable[[], Parsed]) -> Parsed:
    """The result of `parse`, which reads so many bytes; large ones are read in a thread."""
    if num_bytes < OFF_LOOP_BYTES:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_parser, parse)


async def read_optional_body(request: Request, model: type[BodyType], config: ServerConfig) -> BodyType:
    """Like `read_body`, for bodies whose every field has a default: nothing at all counts as an empty object."""
    raw = await read_bytes(request, config) or b"{}"
    return await off_loop(len(raw), lambda: parse_body(raw, model))


async def read_bytes(request: Request, config: ServerConfig, max_bytes: int | None = None) -> bytes:
    """The whole body, at most `max_bytes` of it (default: `config.body_bytes`), at no less than the least rate."""
    cap = config.body_bytes if max_bytes is None else max_bytes
    check_announced(request, cap)
    clock = BodyClock(config.timeouts)
    raw, more = bytearray(), True
    while more:
        message = await clock.receive(request, len(raw))
        raw += message.get("body", b"")
        more = message.get("more_body", False)
        if len(raw) > cap:
            raise too_large(cap)
    return bytes(raw)


def check_announced(request: Request, cap: int) -> None:
    if request.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise InvalidRequest("Compressed request bodies are not read here; send plain JSON.", param=None)
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced) > cap:
        raise too_large(cap)


class BodyClock:
    """The deadlines of one body: pauses, the least rate, and the whole."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._started = time.monotonic()

    async def receive(self, request: Request, num_received: int) -> dict[str, Any]:
        try:
            message = await asyncio.wait_for(request.receive(), self._time_left(num_received))
        except TimeoutError:
            raise RequestTimeout("The body arrived too slowly.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return dict(message)

    def _time_left(self, num_received: int) -> float:
        allowed_s = self._timeouts.body_grace_s + num_received / self._timeouts.body_bytes_per_s
        left_s = min(allowed_s, self._timeouts.body_read_s) - (time.monotonic() - self._started)
        return max(0.0, min(left_s, self._timeouts.body_idle_s))


def too_large(cap: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is over {cap} bytes.")


def parse_body(raw: bytes, model: type[BodyType]) -> BodyType:
    fields = parse_object(raw)
    body = validate(model, fields)
    if isinstance(body, GenerationBody):
        refuse_fields(fields, model)
        body.keep_source(raw, fields)
    return body


def validate(model: type[Checked], fields: Mapping[str, Any]) -> Checked:
    """The checked model of a body or of a part of it. Raises InvalidRequest that names the wrong field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, fields) from None


def parse_object(raw: bytes) -> dict[str, Any]:
    check_num_values(raw)
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} ({place}).", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return merge_extra(fields)


def check_num_values(raw: bytes) -> None:
    """Refuses a body of very many small values, which would hold the interpreter lock for seconds."""
    if _num_separators(raw) <= MAX_JSON_VALUES:
        return
    # Separators inside strings do not count. Without escapes, quotes only begin and end strings.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    is_over = bare.count(b'"') > 4 * MAX_JSON_VALUES
    if is_over or _num_separators(b"".join(bare.split(b'"')[::2])) > MAX_JSON_VALUES:
        raise InvalidRequest(f"The body has more than {MAX_JSON_VALUES} JSON values.", code="invalid_json")


def _num_separators(raw: bytes) -> int:
    return sum(map(raw.count, (b",", b"[", b"{")))


def merge_extra(fields: dict[str, Any]) -> dict[str, Any]:
    """Mercury's literal `extra_body` field: its content counts as fields, and plain fields win."""
    extra = fields.pop("extra_body", None)
    return {**extra, **fields} if isinstance(extra, dict) else fields


# Name -> the values that leave the answer as it is. Null, an empty list and an empty object always do.
REFUSED: dict[str, tuple[object, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (0, 1),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": (),
    "prediction": (),
    "web_search_options": (),
    # vLLM
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "early_stopping": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": (),
    "min_tokens": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
    # SGLang
    "ebnf": (),
    "lora_path": (),
    "regex": (),
    "stop_regex": (),
    # llama.cpp and text-generation-webui
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "eta_cutoff": (0,),
    "grammar": ("",),
    "json_schema": (),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "n_predict": (-1,),
    "no_repeat_ngram_size": (0,),
    "repeat_penalty": (1,),
    "smoothing_factor": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}


def refuse_fields(fields: Mapping[str, Any], body: type[Wire]) -> None:
    """Raises InvalidRequest that names the first field of REFUSED that is set and that `body` does not read."""
    for name in fields.keys() & REFUSED.keys():
        value = fields[name]
        if name not in body.model_fields and value not in (None, [], {}) and value not in REFUSED[name]:
            raise InvalidRequest(f"{name}: this field is not supported here", param=name, code="unsupported_parameter")


NamedBody = TypeVar("NamedBody", bound=ModelBody)


async def read_for_model(request: Request, body_type: type[NamedBody], kind: RouteKind) -> tuple[NamedBody, Services]:
    """The body, with the name of the default model if it names none. Waits while the model is loaded, and raises
    EngineUnavailable if that takes too long."""
    body = await read_body(request, body_type, services_of(request).config)
    return await choose_model(request, body, kind)


async def choose_model(request: Request, body: NamedBody, kind: RouteKind) -> tuple[NamedBody, Services]:
    """As `read_for_model`, for a body that has been read."""
    services = await services_of(request).for_tenant(body.model, kind, caller_of(request).tenant)
    if not services.is_loaded:
        await while_connected(request, services.load())
    if body.model:
        return body, services
    return body.model_copy(update={"model": services.directory.default}), services
