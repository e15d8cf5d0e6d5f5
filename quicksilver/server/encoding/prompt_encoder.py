"""PromptEncoder: the one way from text of a request to token ids.

Text is refused by its length before it is encoded. Long texts, and all texts for a checkpoint that brings its own
template, are encoded by the pool: its template and the patterns of its tokenizer may take very long. Other short texts
are encoded in this process, in a thread. `encode` is the same function in this process and in an encoder process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from quicksilver.editing.edit_request import EditRequest
from quicksilver.editing.prompts import edit_prompt, fim_prompt
from quicksilver.errors import ContextTooLong
from quicksilver.text.chat import ChatTemplate, RenderedPrompt
from quicksilver.text.conversation import PromptRequest
from quicksilver.text.tokenizer import Tokenizer

# Text with more characters than this per token of context is refused unread. Ordinary text has about four.
CHARS_PER_TOKEN = 32
# Longer texts are encoded in another process, which has limits on time and memory. About 3 ms of work.
POOL_CHARS = 16 * 2**10


class EncodeTexts(msgspec.Struct, frozen=True, tag=True):
    """Texts of a request, each of which is encoded separately."""

    texts: tuple[str, ...]


class RenderChat(msgspec.Struct, frozen=True, tag=True):
    request: PromptRequest


class EncodeFim(msgspec.Struct, frozen=True, tag=True):
    prefix: str
    suffix: str
    max_tokens: int


class EncodeEdit(msgspec.Struct, frozen=True, tag=True):
    request: EditRequest
    max_tokens: int


EncodeJob = EncodeTexts | RenderChat | EncodeFim | EncodeEdit


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """The ids of each text, or of the one prompt. `opens_thinking` as in RenderedPrompt."""

    ids: tuple[tuple[int, ...], ...]
    opens_thinking: bool = False


class EncoderProcesses(Protocol):
    """Encodes outside this process: an EncoderPool."""

    async def encode(self, job: EncodeJob, tenant: str) -> Encoded: ...


class PromptEncoder:
    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, context_len: int, pool: EncoderProcesses | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_chars = CHARS_PER_TOKEN * context_len
        self._pool = pool

    async def encode(self, texts: Sequence[str], tenant: str, param: str) -> list[tuple[int, ...]]:
        """The ids of each text; `param` names the field in a refusal."""
        return list((await self._run(EncodeTexts(tuple(texts)), tenant, param)).ids)

    async def render(self, request: PromptRequest, tenant: str, param: str = "messages") -> RenderedPrompt:
        encoded = await self._run(RenderChat(request), tenant, param)
        return RenderedPrompt(encoded.ids[0], encoded.opens_thinking)

    async def encode_fim(self, prefix: str, suffix: str, max_tokens: int, tenant: str) -> tuple[int, ...]:
        """A prompt cut to `max_tokens`. Text that could not fit in any case is cut off before it is encoded."""
        half = self._max_chars // 2
        job = EncodeFim(prefix[-half:], suffix[:half], max_tokens)
        return (await self._run(job, tenant, "prompt")).ids[0]

    async def encode_edit(self, request: EditRequest, max_tokens: int, tenant: str) -> tuple[int, ...]:
        """As `encode_fim`, for the file around the region; the other parts must be within the bound."""
        quarter = self._max_chars // 4
        request = replace(request, before=request.before[-quarter:], after=request.after[:quarter])
        return (await self._run(EncodeEdit(request, max_tokens), tenant, "messages")).ids[0]

    def check_length(self, length: int, param: str) -> None:
        if length > self._max_chars:
            raise ContextTooLong(
                f"The text has {length} characters; at most {self._max_chars} are read for this model's context.",
                param=param,
            )

    async def _run(self, job: EncodeJob, tenant: str, param: str) -> Encoded:
        length = num_chars(job)
        self.check_length(length, param)
        is_foreign = self._template.source is not None
        if self._pool is not None and (is_foreign or length > POOL_CHARS):
            return await self._pool.encode(job, tenant)
        return await asyncio.to_thread(encode, job, self._tokenizer, self._template)


def encode(job: EncodeJob, tokenizer: Tokenizer, template: ChatTemplate) -> Encoded:
    if isinstance(job, EncodeTexts):
        return Encoded(tuple(tuple(tokenizer.encode(text)) for text in job.texts))
    if isinstance(job, RenderChat):
        prompt = template.write(job.request)
        return Encoded((prompt.ids,), prompt.opens_thinking)
    if isinstance(job, EncodeFim):
        return Encoded((tuple(fim_prompt(tokenizer, job.prefix, job.suffix, job.max_tokens)),))
    return Encoded((tuple(edit_prompt(tokenizer, job.request, job.max_tokens)),))


def num_chars(job: EncodeJob) -> int:
    """Characters of text that the job encodes: a lower bound of its bytes."""
    if isinstance(job, EncodeTexts):
        return sum(map(len, job.texts))
    if isinstance(job, EncodeFim):
        return len(job.prefix) + len(job.suffix)
    if isinstance(job, RenderChat):
        return _chat_chars(job.request)
    parts = (job.request.before, job.request.region, job.request.after, *job.request.history)
    return sum(map(len, parts)) + sum(len(snippet.path) + len(snippet.code) for snippet in job.request.snippets)


def _chat_chars(request: PromptRequest) -> int:
    texts = (text for m in request.messages for text in (m.content, m.reasoning, m.name, m.tool_call_id))
    calls = (len(call.name) + len(call.arguments) for m in request.messages for call in m.tool_calls)
    tools = (len(tool.name) + len(tool.description) + _json_chars(tool.parameters) for tool in request.tools)
    return sum(map(len, texts)) + sum(calls) + sum(tools)


def _json_chars(value: object) -> int:
    """Characters of the strings in a JSON value. The depth and the number of values of a body are bounded."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _json_chars(item) for key, item in value.items())
    return sum(map(_json_chars, value)) if isinstance(value, list | tuple) else 0
