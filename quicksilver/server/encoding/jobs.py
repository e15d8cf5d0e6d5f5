"""What an encoder process does: it encodes texts, conversations and the prompts of code editors, merges an update into
a file, and checks a rewritten part of a file.

`perform` is the same function in this process and in an encoder process.
"""

from __future__ import annotations

import msgspec

from quicksilver.editing.apply import MergedPart, Rewrite, checked_reply, merge
from quicksilver.editing.edit_request import EditRequest
from quicksilver.editing.prompts import edit_prompt, fim_prompt
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import PromptRequest
from quicksilver.text.tokenizer import Tokenizer


class EncodeTexts(msgspec.Struct, frozen=True, tag=True):
    """Texts from outside, each by itself."""

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


class MergeUpdate(msgspec.Struct, frozen=True, tag=True):
    """An update snippet and the file that it changes."""

    original: str
    update: str


class CheckRewrite(msgspec.Struct, frozen=True, tag=True):
    """A part of a file and the answer of the model that rewrote it."""

    part: Rewrite
    answer: str


Job = EncodeJob | MergeUpdate | CheckRewrite


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """Ids of each text, or of the one prompt; `opens_thinking` as in RenderedPrompt."""

    ids: tuple[tuple[int, ...], ...]
    opens_thinking: bool = False


class Merged(msgspec.Struct, frozen=True, tag=True):
    parts: tuple[MergedPart, ...]


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The text of the rewritten part; None if the answer must not be used."""

    text: str | None


Result = Encoded | Merged | Checked


def perform(job: Job, tokenizer: Tokenizer, template: ChatTemplate) -> Result:
    if isinstance(job, MergeUpdate):
        return Merged(tuple(merge(job.original, job.update)))
    if isinstance(job, CheckRewrite):
        return Checked(checked_reply(job.part, job.answer))
    return encode(job, tokenizer, template)


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
    """Characters of the strings in a JSON value; wire bounds keep its depth and its other nodes few."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _json_chars(item) for key, item in value.items())
    return sum(map(_json_chars, value)) if isinstance(value, list | tuple) else 0
