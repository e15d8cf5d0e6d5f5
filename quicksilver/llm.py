"""LLM: generate, chat, stream, frames and score from Python, in this process.

Wires hub, text, constrain and engine together; holds no logic of its own beyond turning strings into requests and events
back into strings. One generator (`stream`) makes every answer; the other verbs collect from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quicksilver.core import DecodeParams, Delta, Event, FinishReason, Frame, Request, ScoreRequest, Usage
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.errors import QuicksilverError
from quicksilver.hub.resolve import resolve
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.detokenize import Detokenizer
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text, its tokens, why it ended and what it cost."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer under way: text that will not change, and the canvas behind it as it stands."""

    text: str
    delta: Delta | None = None
    frame: Frame | None = None


class LLM:
    """A model by catalogue name or path, ready to answer.

    >>> llm = LLM("smollm2-135m")                                   # doctest: +SKIP
    >>> llm.generate("The capital of France is", max_new_tokens=8)  # doctest: +SKIP
    """

    def __init__(self, model: str, load: LoadConfig | None = None, config: EngineConfig | None = None) -> None:
        checkpoint = resolve(model)
        self.tokenizer = load_tokenizer(checkpoint.weights, has_skill=checkpoint.skill is not None)
        self.template = ChatTemplate.for_tokenizer(self.tokenizer)
        self.engine: Engine = load_engine(checkpoint, load or LoadConfig(), config or EngineConfig())
        self._ids = itertools.count()

    def generate(self, prompt: str, params: DecodeParams | None = None, **changes: object) -> Answer:
        """Continue `prompt`. Keyword arguments change single fields of `params`."""
        return _collect(self.stream(self.tokenizer.encode(prompt), params, **changes))

    def chat(self, messages: Sequence[Message] | str, params: DecodeParams | None = None, **changes: object) -> Answer:
        """Answer a conversation, or a single user message."""
        return _collect(self.stream(self.chat_prompt(messages), params, **changes))

    def chat_prompt(self, messages: Sequence[Message] | str) -> tuple[int, ...]:
        turns = [Message("user", messages)] if isinstance(messages, str) else messages
        return self.template.render(turns).ids

    def stream(
        self, prompt_ids: Sequence[int], params: DecodeParams | None = None, **changes: object
    ) -> Iterator[Piece]:
        """Text as it is committed; with frames of the canvas between. Stop early by closing the iterator."""
        stop = tuple(changes.pop("stop", ()))  # type: ignore[arg-type]
        request = self._request(prompt_ids, params, changes)
        detokenizer = Detokenizer(self.tokenizer, stop)
        self.engine.add(request)
        try:
            for event in self._events(request.id):
                yield _piece(event, detokenizer)
                if detokenizer.stopped is not None:
                    return
        finally:
            self.engine.abort(request.id)

    def score(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        """Natural-log likelihood of each continuation after `prompt`, all read from one forward."""
        ids = tuple(tuple(self.tokenizer.encode(text)) for text in continuations)
        request = ScoreRequest(self._next_id(), tuple(self.tokenizer.encode(prompt)), ids)
        self.engine.add_score(request)
        while True:
            for event in self.engine.step():
                if isinstance(event, Scored) and event.request_id == request.id:
                    return [sum(logprobs) for logprobs in event.scores.logprobs]
                if isinstance(event, Delta) and event.request_id == request.id:
                    raise QuicksilverError(event.error or "scoring failed")

    def _request(self, prompt_ids: Sequence[int], params: DecodeParams | None, changes: dict[str, object]) -> Request:
        params = params or DecodeParams()
        wants_frames = bool(changes.pop("wants_frames", False))
        if not params.stop_ids:
            params = replace(params, stop_ids=self.tokenizer.eos_ids)
        return Request(self._next_id(), tuple(prompt_ids), replace(params, **changes), wants_frames=wants_frames)  # type: ignore[arg-type]

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _events(self, request_id: str) -> Iterator[Event]:
        while self.engine.has_work:
            for event in self.engine.step():
                if not isinstance(event, Scored) and event.request_id == request_id:
                    yield event


def load_tokenizer(weights: object, *, has_skill: bool) -> Tokenizer:
    """The checkpoint's tokenizer; a skill adapter was trained with spare tokens in the roles the parent lacks."""
    tokenizer = Tokenizer.load(str(weights))
    return tokenizer.with_reserved() if has_skill else tokenizer


def _piece(event: Event, detokenizer: Detokenizer) -> Piece:
    if isinstance(event, Frame):
        return Piece("", frame=event)
    if event.finish is FinishReason.ERROR:
        raise QuicksilverError(event.error or "the request failed")
    text = detokenizer.push(event.token_ids)
    if event.finish is not None:
        text += detokenizer.finish()
    return Piece(text, delta=event)


def _collect(pieces: Iterator[Piece]) -> Answer:
    text, token_ids, last = "", list[int](), Delta("")
    for piece in pieces:
        text += piece.text
        if piece.delta is not None:
            token_ids += piece.delta.token_ids
            last = piece.delta
    return Answer(text, tuple(token_ids), last.finish or FinishReason.STOP, last.usage or Usage())
