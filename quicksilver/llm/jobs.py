"""Prompts and options of a call -> jobs for the engine. LLM and AsyncLLM run the same jobs in different ways."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quicksilver.constrain.choice import continuations, decide
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.source import FormatKind, Layout, Policy, ResponseFormat, Thinking
from quicksilver.constrain.validate import validate_output
from quicksilver.core import DecodeParams, FinishReason, Request, ScoreRequest, Scores, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.llm.answers import Answer, AnswerCollector
from quicksilver.text.answer import AnswerReader, ReadOptions
from quicksilver.text.chat import ChatTemplate, RenderedPrompt, limit_thinking
from quicksilver.text.conversation import Message
from quicksilver.text.messages import Conversation, read_conversation
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How the answers of one call are generated."""

    params: DecodeParams
    stop: tuple[str, ...] = ()
    # At most one of these three.
    schema: Any = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    effort: str | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.schema, self.regex, self.choice)) > 1:
            raise InvalidRequest("give only one of schema, regex and choice")
        if self.choice is not None and not 1 <= len(set(self.choice)) == len(self.choice):
            raise InvalidRequest("choice needs labels that differ", param="choice")


def make_options(
    params: DecodeParams | None,
    stop: Sequence[str] | str,
    schema: Any,
    regex: str | None,
    choice: Sequence[str] | None,
    effort: str | None = None,
) -> AnswerOptions:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    labels = None if choice is None else tuple(choice)
    return AnswerOptions(params or DecodeParams(), stops, schema, regex, labels, effort)


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """An answer to generate, and how its tokens are read."""

    request: Request
    options: ReadOptions

    def collector(self, tokenizer: Tokenizer) -> AnswerCollector:
        return AnswerCollector(AnswerReader(self.request, self.options, tokenizer))


@dataclass(frozen=True, slots=True)
class ChoiceJob:
    """Labels to score after one prompt."""

    request: ScoreRequest
    labels: tuple[str, ...]

    def answer(self, scores: Scores) -> Answer:
        decided = decide(self.labels, scores)
        ids = self.request.continuations[self.labels.index(decided.label)]
        usage = Usage(
            prompt_tokens=len(self.request.prompt_ids), forwards=scores.usage.forwards, rows=scores.usage.rows
        )
        return Answer(decided.label, ids[:-1], FinishReason.STOP, usage, probabilities=decided.probabilities)


Job = AnswerJob | ChoiceJob


class JobBuilder:
    """Builds the jobs for one model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._ids = itertools.count()

    def next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def text_jobs(self, prompts: str | Sequence[str], options: AnswerOptions) -> list[Job]:
        """A job for the prompt, or one for each of a list."""
        return [self.text_job(one, options) for one in ([prompts] if isinstance(prompts, str) else prompts)]

    def chat_jobs(self, messages: Any, options: AnswerOptions) -> list[Job]:
        """A job for the conversation, or one for each of a list; see `is_batch`."""
        return [self.chat_job(one, options) for one in (messages if is_batch(messages) else [messages])]

    def text_job(self, prompt: str | Sequence[int], options: AnswerOptions) -> Job:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return self._job(RenderedPrompt(tuple(ids), opens_thinking=False), options)

    def chat_job(self, conversation: Conversation, options: AnswerOptions) -> Job:
        return self._job(self.render(conversation, options.effort), options)

    def render(self, conversation: Conversation, effort: str | None = None) -> RenderedPrompt:
        return self.template.render(read_conversation(conversation), effort=effort)

    def request(self, prompt_ids: Sequence[int], params: DecodeParams | None) -> Request:
        params = params or DecodeParams()
        if not params.stop_ids:
            params = replace(params, stop_ids=self.tokenizer.eos_ids)
        return Request(self.next_id(), tuple(prompt_ids), params)

    def _job(self, prompt: RenderedPrompt, options: AnswerOptions) -> Job:
        if options.choice is not None:
            return self._choice_job(prompt.ids, options.choice)
        request = self.request(prompt.ids, options.params)
        close_id = self.tokenizer.roles.think_close if prompt.opens_thinking else None
        if close_id is not None:
            think = limit_thinking(options.effort, request.params.max_new_tokens, close_id, self.tokenizer.encode)
            request = replace(request, think=think)
        source = _response_format(options, Thinking(close_id) if close_id is not None else None)
        if source is not None:
            request = replace(request, constraint=compile_response_format(source))
        schema = source.value if source is not None and source.kind is FormatKind.JSON_SCHEMA else None
        return AnswerJob(
            request,
            ReadOptions(
                stop=options.stop,
                is_plain=not prompt.opens_thinking,
                opens_thinking=prompt.opens_thinking,
                find_fault=None if schema is None else lambda content, _: validate_output(schema, content),
            ),
        )

    def _choice_job(self, prompt_ids: tuple[int, ...], labels: tuple[str, ...]) -> ChoiceJob:
        ids = continuations(labels, self.tokenizer.encode, self.tokenizer.eos_ids[0])
        return ChoiceJob(ScoreRequest(self.next_id(), prompt_ids, ids), labels)


def _response_format(options: AnswerOptions, thinking: Thinking | None) -> ResponseFormat | None:
    if options.regex is not None:
        return ResponseFormat(FormatKind.REGEX, options.regex, thinking=thinking)
    if options.schema is None:
        return None
    # A pydantic model stands for its schema.
    make_schema = getattr(options.schema, "model_json_schema", None)
    schema = options.schema if make_schema is None else make_schema()
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest("schema is a JSON Schema as a dict, or a pydantic model", param="schema")
    return ResponseFormat(FormatKind.JSON_SCHEMA, schema, Policy.VALIDATED, Layout.SPACED, thinking=thinking)


def is_batch(conversations: Any) -> bool:
    """Whether a list holds conversations. A list of messages is one conversation."""
    if isinstance(conversations, str):
        return False
    return not any(isinstance(one, Message | Mapping) for one in conversations)
