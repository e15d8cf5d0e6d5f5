"""How bodies pass the socket: a request's becomes a checked wire model, a reply's is sent as events while it is made.

A request's body is parsed once and never again: its size is checked first, then JSON, then fields. NaN, lone surrogates
and malformed UTF-8 are refused by the parser; of a key that comes twice the last wins. Large bodies are parsed off the
event loop. A body that sets a field of another server that changes the answer and cannot be honoured here is refused;
any other unknown field is ignored with a warning. Every route whose body names a model begins with `read_for_model`,
and passes the Services on: the reply is generated and charged by that model.

A stream is read only as fast as the socket takes the data, so nothing queues here for a slow client. The work on any
reply is cancelled when its client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quicksilver.errors import BodyTooLarge, InvalidRequest
from quicksilver.server.config import ServerConfig, Timeouts
from quicksilver.server.http.errors import RequestTimeout, invalid_body
from quicksilver.server.http.fields import GenerationBody, ModelBody, Wire
from quicksilver.server.http.guard import caller_of
from quicksilver.server.services import RouteKind, Services, services_of

BodyType = TypeVar("BodyType", bound=Wire)
Parsed = TypeVar("Parsed")
Checked = TypeVar("Checked", bound=BaseModel)
Result = TypeVar("Result")

OFF_LOOP_BYTES = 64 * 2**10
MAX_JSON_VALUES = 200_000
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# One at a time: a parser holds the interpreter lock, so two would make the event loop wait twice as long.
_parser = ThreadPoolExecutor(1, thread_name_prefix="parse-body")


async def read_body(
    request: Request, model: type[BodyType], config: ServerConfig, max_bytes: int | None = None
) -> BodyType:
    """The body, read and checked as `model`."""
    raw = await read_bytes(request, config, max_bytes)
    return await off_loop(len(raw), lambda: parse_body(raw, model))


async def off_loop(num_bytes: int, parse: Callable[[], Parsed]) -> Parsed:
    """The result of `parse`, whose input has `num_bytes` bytes. Large input is parsed in a thread."""
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
    """The deadlines of one body: the longest pause, the least bytes per second, and the longest time in total."""

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
    # OpenRouter, DashScope, DeepSeek
    "enable_thinking": (False,),
    "reasoning": ({"enabled": False}, {"effort": "none"}),
    "thinking": ({"type": "disabled"},),
    "thinking_budget": (0,),
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
    # SGLang and TGI
    "custom_logit_processor": (),
    "ebnf": (),
    "lora_path": (),
    "max_new_tokens": (),
    "min_new_tokens": (0,),
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
    return body.model_copy(update={"model": services.model_names.default}), services


def data_event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_event(name: str, payload: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"


class Closable(Protocol):
    async def aclose(self) -> None: ...


class EventStream(Response):
    """Sends what `events` yields. Whatever ends the reply, `source` is closed before the call returns."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        source: Closable,
        idle_s: float,
        headers: Mapping[str, str] | None = None,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._source = source
        self._idle_s = idle_s
        self._keep_alive = keep_alive
        self._num_sent = 0
        self._is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The source is closed apart from the events: a generator that never began runs no cleanup of its own.
        async with aclosing(self._source):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._run(receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watch, pump):
                task.cancel()
            results = await asyncio.gather(pump, watch, return_exceptions=True)
        _raise_failures(results)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._num_sent += 1
        self._is_done = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Returns when the client has disconnected. Until then sends comments while the stream is idle, so that
        proxies keep the connection."""
        while True:
            before = self._num_sent
            try:
                message = await asyncio.wait_for(receive(), self._idle_s)
            except TimeoutError:
                if self._num_sent == before and not self._is_done:
                    await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                continue
            if message["type"] == "http.disconnect":
                return


class LineStream(EventStream):
    """One JSON object per line. There are no comments in this form, so an idle stream sends nothing."""

    media_type = "application/x-ndjson"

    async def _watch(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def _raise_failures(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client disconnects. The body must have been read before."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
