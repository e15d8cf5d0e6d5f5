"""LLM: the Python API. Generation, chat, streaming and scoring with an engine in the calling process.

It converts strings to requests and events back to strings. Every answer comes from one generator, `LLM.stream`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quicksilver.core import DecodeParams, Delta, Event, FinishReason, Frame, Request, ScoreRequest, Scores, Usage
from quicksilver.diffusion.score import score_masked
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.errors import QuicksilverError
from quicksilver.hub.resolve import resolve
from quicksilver.text.answer import AnswerReader, ReadOptions, TextDelta
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text with its tokens, finish reason and usage."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: new text that will not change, or the current canvas."""

    text: str = ""
    delta: Delta | None = None
    frame: Frame | None = None


class LLM:
    """A loaded model, by catalogue name or path. Not thread-safe."""

    def __init__(self, model: str, load: LoadConfig | None = None, config: EngineConfig | None = None) -> None:
        checkpoint = resolve(model)
        self.tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
        self.template = ChatTemplate.for_tokenizer(self.tokenizer)
        self.engine: Engine = load_engine(checkpoint, load or LoadConfig(), config or EngineConfig())
        self._ids = itertools.count()

    def generate(self, prompt: str, params: DecodeParams | None = None, stop: Sequence[str] = ()) -> Answer:
        """Generates a continuation of `prompt`."""
        return _collect(self.stream(self.tokenizer.encode(prompt), params, stop))

    def chat(
        self, messages: Sequence[Message] | str, params: DecodeParams | None = None, stop: Sequence[str] = ()
    ) -> Answer:
        """Answers a conversation, or a single user message."""
        return _collect(self.stream(self.chat_prompt(messages), params, stop))

    def chat_prompt(self, messages: Sequence[Message] | str) -> tuple[int, ...]:
        turns = [Message("user", messages)] if isinstance(messages, str) else messages
        return self.template.render(turns).ids

    def stream(
        self, prompt_ids: Sequence[int], params: DecodeParams | None = None, stop: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """Text as it is committed. Closing the iterator aborts the request."""
        return self._pieces(self._request(prompt_ids, params), stop)

    def frames(
        self, prompt_ids: Sequence[int], params: DecodeParams | None = None, stop: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """Like `stream`, with a frame of the canvas after every step."""
        return self._pieces(replace(self._request(prompt_ids, params), wants_frames=True), stop)

    def samples(self, prompt_ids: Sequence[int], n: int, params: DecodeParams | None = None) -> list[Answer]:
        """`n` answers in one batch, with the seeds `params.seed`, `params.seed + 1` and so on."""
        first = self._request(prompt_ids, params)
        requests = [replace(first, id=f"{first.id}.{i}", params=_with_seed(first.params, i)) for i in range(n)]
        deltas: dict[str, list[Delta]] = {request.id: [] for request in requests}
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            for event in self.engine.step():
                if isinstance(event, Delta) and event.request_id in deltas:
                    deltas[event.request_id].append(event)
        return [_collect(self._texts(request, deltas[request.id])) for request in requests]

    def _texts(self, request: Request, deltas: Sequence[Delta]) -> Iterator[Piece]:
        reader = AnswerReader(request, ReadOptions(is_plain=True), self.tokenizer)
        return (_piece(delta, reader) for delta in deltas)

    def score(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        """Natural-log likelihood of each continuation under the autoregressive parent."""
        encoded = tuple(tuple(self.tokenizer.encode(text)) for text in continuations)
        request = ScoreRequest(self._next_id(), tuple(self.tokenizer.encode(prompt)), encoded)
        self.engine.add_score(request)
        return [sum(logprobs) for logprobs in self._scores(request.id).logprobs]

    def bound(self, prompt: str, text: str, canvas_len: int = 16, num_samples: int = 8, seed: int = 0) -> float:
        """A Monte-Carlo estimate of the diffusion bound on the log-likelihood of `text`: random masks per canvas, each
        masked token weighted by 1 / mask ratio. In expectation it is not above `score` for a perfect canvas adapter.
        """
        context, tokens, rng = self.tokenizer.encode(prompt), self.tokenizer.encode(text), random.Random(seed)
        total = 0.0
        for start in range(0, len(tokens), canvas_len):
            block = tokens[start : start + canvas_len]
            samples = [self._bound_sample([*context, *tokens[:start]], block, rng) for _ in range(num_samples)]
            total += sum(samples) / num_samples
        return total

    def _bound_sample(self, context: Sequence[int], block: Sequence[int], rng: random.Random) -> float:
        """A uniform number of masks at random positions, so every mask ratio is equally likely."""
        num_masked = rng.randint(1, len(block))
        places = set(rng.sample(range(len(block)), num_masked))
        scorer = score_masked(block, [i in places for i in range(len(block))])
        request = ScoreRequest(self._next_id(), tuple(context), ())
        self.engine.add_scorer(request, scorer)
        scores = self._scores(request.id)
        return sum(scores.logprobs[0]) * len(block) / num_masked

    def _scores(self, request_id: str) -> Scores:
        while True:
            for event in self.engine.step():
                if isinstance(event, Scored) and event.request_id == request_id:
                    return event.scores
                if isinstance(event, Delta) and event.request_id == request_id:
                    raise QuicksilverError(event.error or "scoring failed")

    def _request(self, prompt_ids: Sequence[int], params: DecodeParams | None) -> Request:
        params = params or DecodeParams()
        if not params.stop_ids:
            params = replace(params, stop_ids=self.tokenizer.eos_ids)
        return Request(self._next_id(), tuple(prompt_ids), params)

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _pieces(self, request: Request, stop: Sequence[str]) -> Iterator[Piece]:
        reader = AnswerReader(request, ReadOptions(stop=tuple(stop), is_plain=True), self.tokenizer)
        self.engine.add(request)
        try:
            for event in self._events(request.id):
                yield _piece(event, reader)
                if reader.is_finished:
                    return
        finally:
            self.engine.abort(request.id)

    def _events(self, request_id: str) -> Iterator[Event]:
        while self.engine.has_work:
            for event in self.engine.step():
                if not isinstance(event, Scored) and event.request_id == request_id:
                    yield event


def _with_seed(params: DecodeParams, offset: int) -> DecodeParams:
    return replace(params, seed=params.seed + offset)


def _piece(event: Event, reader: AnswerReader) -> Piece:
    if isinstance(event, Frame):
        return Piece(frame=event)
    texts = [piece for piece in reader.read(event) if isinstance(piece, TextDelta)]
    return Piece("".join(delta.text for text in texts for delta in text.deltas), delta=event)


def _collect(pieces: Iterator[Piece]) -> Answer:
    text, token_ids, last = "", list[int](), Delta("")
    for piece in pieces:
        text += piece.text
        if piece.delta is not None:
            token_ids += piece.delta.token_ids
            last = piece.delta
    return Answer(text, tuple(token_ids), last.finish or FinishReason.STOP, last.usage or Usage())
