"""UpstreamClient: chat completions of an OpenAI-compatible server, as checked events.

The address, the key and the model come from the operator's settings. Redirects, proxies of the environment and cookies
are not used. Whatever the upstream sends is bounded in size and time, and every field that is read is checked: anything
else raises UpstreamFailed.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from quicksilver.core import FinishReason, Usage
from quicksilver.errors import UpstreamFailed
from quicksilver.server.breaker import Breaker, BreakerConfig
from quicksilver.server.hybrid.policy import UpstreamSettings

# A longer Retry-After of an upstream is shortened to this.
MAX_RETRY_AFTER_S = 300.0
MAX_LINE_BYTES = 2**20
MAX_TOTAL_BYTES = 16 * 2**20
MAX_CALLS = 64
# Statuses after which the same request may succeed at once.
RETRIED = (502, 503, 504)
# Statuses that are about this request or about the operator's settings, not about the health of the upstream.
REFUSALS = (400, 404, 405, 413, 415, 422)
FINISHES = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call. Only the first piece of a call has a name."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UpstreamEvent:
    """One chunk of an answer. The last event has `finish`."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    finish: FinishReason | None = None
    # None until the upstream reports it.
    usage: Usage | None = None


class UpstreamClient:
    def __init__(
        self, settings: UpstreamSettings, key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.settings = settings
        limits = (settings.max_failures, settings.failure_window_s, settings.open_s)
        self.breaker = Breaker(BreakerConfig(*limits, max_open_s=settings.open_s))
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.idle_s, connect=settings.connect_s),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32),
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[UpstreamEvent, None]:
        """The events of one answer, ending with `finish`. Raises UpstreamFailed. Closing the generator closes the
        connection."""
        if not self.breaker.allows():
            raise UpstreamFailed(f"{self.settings.name} has failed often and is not called for a while")
        self.breaker.begin()
        has_result = False
        try:
            async with aclosing(self._attempts(body)) as events:
                async for event in events:
                    yield event
            self.breaker.succeed()
            has_result = True
        except UpstreamFailed as error:
            has_result = True
            if error.is_refusal:
                self.breaker.succeed()
            else:
                self.breaker.fail(min(error.asked_wait_s or 0.0, MAX_RETRY_AFTER_S))
            raise
        finally:
            if not has_result:
                self.breaker.cancel()

    async def _attempts(self, body: Mapping[str, Any]) -> AsyncGenerator[UpstreamEvent, None]:
        for attempt in range(self.settings.retries + 1):
            has_begun = False
            try:
                async with aclosing(self._attempt(body)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except UpstreamFailed as error:
                if has_begun or not error.may_retry or attempt == self.settings.retries:
                    raise

    async def _attempt(self, body: Mapping[str, Any]) -> AsyncGenerator[UpstreamEvent, None]:
        reader = AnswerEvents(self.settings.name)
        deadline = time.monotonic() + self.settings.total_s
        async with self._response(body) as response:
            num_bytes, rest = 0, b""
            async for part in response.aiter_bytes():
                num_bytes += len(part)
                if num_bytes > MAX_TOTAL_BYTES or time.monotonic() > deadline:
                    raise UpstreamFailed(f"{self.settings.name} sent too much or took too long")
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise UpstreamFailed(f"{self.settings.name} sent a line that is too long")
                for line in lines:
                    if (event := reader.read(line)) is not None:
                        yield event
                    if reader.is_done:
                        break
                if reader.is_done:
                    break
        if not reader.is_done and (event := reader.read(rest)) is not None:
            yield event
        yield reader.end()

    @asynccontextmanager
    async def _response(self, body: Mapping[str, Any]) -> AsyncIterator[httpx.Response]:
        name, url = self.settings.name, f"{self.settings.url.rstrip('/')}/chat/completions"
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        try:
            async with self._client.stream("POST", url, content=orjson.dumps(body), headers=headers) as response:
                if response.status_code != 200:
                    raise _status_failure(name, response)
                yield response
        except httpx.ConnectError:
            raise UpstreamFailed(f"{name} cannot be reached", may_retry=True) from None
        except httpx.TimeoutException:
            raise UpstreamFailed(f"{name} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise UpstreamFailed(f"the connection to {name} failed: {type(error).__name__}") from None


def _status_failure(name: str, response: httpx.Response) -> UpstreamFailed:
    """The body of an error is not read: it could quote the prompt into our logs and replies."""
    status = response.status_code
    asked = _wait_of(response.headers.get("retry-after", "")) if status in (429, 503) else None
    return UpstreamFailed(
        f"{name} answered with status {status}",
        asked_wait_s=1.0 if status == 429 and asked is None else asked,
        may_retry=status in RETRIED and asked is None,
        is_refusal=status in REFUSALS,
    )


def _wait_of(header: str) -> float | None:
    """Seconds of a Retry-After header; a date is not read."""
    try:
        seconds = float(header)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class AnswerEvents:
    """Reads the lines of one stream of server-sent events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._finish: FinishReason | None = None
        self._usage: Usage | None = None
        self._num_calls = 0
        self.is_done = False

    def read(self, line: bytes) -> UpstreamEvent | None:
        """The event of a line; None for comments, blank lines, the end of the stream and chunks without text."""
        line = line.strip()
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return None
        if not line.startswith(b"data:"):
            raise self._garbage()
        data = line[5:].strip()
        if data == b"[DONE]":
            self.is_done = True
            return None
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise self._garbage() from None
        return self._event(chunk)

    def end(self) -> UpstreamEvent:
        """The last event. Raises UpstreamFailed for a stream that was cut off."""
        if self._finish is None:
            raise UpstreamFailed(f"{self._name} cut its answer off")
        return UpstreamEvent(finish=self._finish, usage=self._usage)

    def _event(self, chunk: Any) -> UpstreamEvent | None:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list) or "error" in chunk:
            raise self._garbage()
        if isinstance(chunk.get("usage"), dict):
            self._usage = _usage_of(chunk["usage"])
        if not chunk["choices"]:
            return None
        choice = chunk["choices"][0]
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            raise self._garbage()
        if (finish := choice.get("finish_reason")) is not None:
            self._finish = FINISHES.get(finish, FinishReason.STOP) if isinstance(finish, str) else FinishReason.STOP
        content, reasoning = self._text(delta, "content"), self._text(delta, "reasoning_content")
        calls = tuple(self._call(call) for call in self._calls(delta))
        return UpstreamEvent(content, reasoning, calls) if content or reasoning or calls else None

    def _text(self, delta: Mapping[str, Any], key: str) -> str:
        value = delta.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._garbage()
        return value

    def _calls(self, delta: Mapping[str, Any]) -> list[Any]:
        value = delta.get("tool_calls")
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._garbage()
        return value

    def _call(self, call: Any) -> CallPart:
        function = call.get("function") if isinstance(call, dict) else None
        index = call.get("index", self._num_calls) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(index, int) or not 0 <= index < MAX_CALLS:
            raise self._garbage()
        name, is_new = self._text(function, "name"), index == self._num_calls
        if index > self._num_calls or (is_new and not name):
            raise self._garbage()
        self._num_calls = max(self._num_calls, index + 1)
        return CallPart(index, name if is_new else "", self._text(function, "arguments"))

    def _garbage(self) -> UpstreamFailed:
        return UpstreamFailed(f"{self._name} sent something that is no chat completion")


def _usage_of(usage: Mapping[str, Any]) -> Usage | None:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    return Usage(prompt, min(_count(cached) or 0, prompt), completion)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
