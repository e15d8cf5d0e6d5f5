"""LLM: generation, chat, streaming and scoring with an engine in the calling process.

It converts strings to requests and events back to strings. A list of prompts is one batch: the engine decodes up to
`EngineConfig.max_running` of them at the same time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from quicksilver.core import DecodeParams, Delta, Event, Request, ScoreRequest, Scores
from quicksilver.diffusion.score import score_masked
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Scored
from quicksilver.engine.load import LoadConfig
from quicksilver.errors import QuicksilverError
from quicksilver.llm.answers import Answer, AnswerCollector, Piece
from quicksilver.llm.jobs import AnswerJob, AnswerOptions, ChoiceJob, Job, is_batch, make_options
from quicksilver.llm.loading import allow_constraints, load_parts, max_open
from quicksilver.llm.progress import BatchProgress
from quicksilver.text.answer import ReadOptions
from quicksilver.text.messages import Conversation, MessageLike


class LLM:
    """A loaded model, by catalogue name, path or name on the Hugging Face hub. Not thread-safe.

    `load` sets device and number format, `config` the limits of the engine. `system_prompt` is the system message of
    chats that have none; None is the default of the model, and "" adds none. `adapters` are adapter files to use
    instead of the model's own.
    """

    def __init__(
        self,
        model: str,
        load: LoadConfig | None = None,
        config: EngineConfig | None = None,
        *,
        system_prompt: str | None = None,
        adapters: Sequence[Path | str] = (),
    ) -> None:
        self.engine, self._builder = load_parts(model, load, config, system_prompt, adapters)
        self.tokenizer, self.template = self._builder.tokenizer, self._builder.template

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompts: str,
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> Answer: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str],
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> list[Answer]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> Answer | list[Answer]:
        """Continue a prompt, or every prompt of a list in one batch.

        `schema` (a JSON Schema or a pydantic model) and `regex` constrain the answer. `choice` returns the likeliest of
        several labels. `progress` draws a progress bar on standard error.
        """
        options = make_options(params, stop, schema, regex, choice)
        answers = self._run(self._builder.text_jobs(prompts, options), progress)
        return answers[0] if isinstance(prompts, str) else answers

    @overload
    def chat(  # type: ignore[overload-overlap]
        self,
        messages: str | Sequence[MessageLike],
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        effort: str | None = None,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> Answer: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        effort: str | None = None,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> list[Answer]: ...

    def chat(
        self,
        messages: Any,
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        effort: str | None = None,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        progress: bool = False,
    ) -> Answer | list[Answer]:
        """Answer a conversation, or every conversation of a list in one batch.

        A conversation is a list of messages (dicts in OpenAI's form, or `Message`), or a string: one user message.
        `effort` (low, medium, high) makes a model that has a reasoning format reason first. The other options are
        those of `generate`.
        """
        options = make_options(params, stop, schema, regex, choice, effort)
        answers = self._run(self._builder.chat_jobs(messages, options), progress)
        return answers if is_batch(messages) else answers[0]

    def chat_prompt(self, messages: Conversation) -> tuple[int, ...]:
        """The token ids of a conversation, for `stream`, `frames` and `samples`."""
        return self._builder.render(messages).ids

    def stream(
        self, prompt: Sequence[int] | str, params: DecodeParams | None = None, stop: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """Text as it is committed. Closing the iterator aborts the request."""
        return self._pieces(self._plain_job(prompt, params, stop))

    def frames(
        self, prompt: Sequence[int] | str, params: DecodeParams | None = None, stop: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """Like `stream`, with a frame of the canvas after every step."""
        job = self._plain_job(prompt, params, stop)
        return self._pieces(replace(job, request=replace(job.request, wants_frames=True)))

    def stream_chat(
        self,
        messages: Conversation,
        params: DecodeParams | None = None,
        *,
        effort: str | None = None,
        frames: bool = False,
    ) -> Iterator[Piece]:
        """The answer to a conversation as it is committed, its reasoning included."""
        job = self._builder.chat_job(messages, AnswerOptions(params or DecodeParams(), effort=effort))
        assert isinstance(job, AnswerJob)
        return self._pieces(replace(job, request=replace(job.request, wants_frames=frames)))

    def samples(self, prompt_ids: Sequence[int], n: int, params: DecodeParams | None = None) -> list[Answer]:
        """`n` answers in one batch, with the seeds `params.seed`, `params.seed + 1` and so on."""
        job = self._plain_job(prompt_ids, params, ())
        return self._run([_sample(job, i) for i in range(n)], progress=False)

    def score(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        """Natural-log likelihood of each continuation under the autoregressive parent."""
        encoded = tuple(tuple(self.tokenizer.encode(text)) for text in continuations)
        request = ScoreRequest(self._builder.next_id(), tuple(self.tokenizer.encode(prompt)), encoded)
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
        request = ScoreRequest(self._builder.next_id(), tuple(context), ())
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

    def _plain_job(self, prompt: Sequence[int] | str, params: DecodeParams | None, stop: Sequence[str]) -> AnswerJob:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return AnswerJob(self._builder.request(ids, params), ReadOptions(stop=tuple(stop), is_plain=True))

    def _run(self, jobs: Sequence[Job], progress: bool) -> list[Answer]:
        """The answers in the order of the jobs. The engine gets them as it has room."""
        batch, waiting = _Batch(self), deque(jobs)
        with BatchProgress(len(jobs), is_shown=progress) as shown:
            try:
                while waiting or batch.num_open:
                    while waiting and batch.num_open < max_open(self.engine.config):
                        batch.start(waiting.popleft())
                    for event in self.engine.step():
                        shown.update(batch.read(event), batch.num_tokens)
            finally:
                batch.abort()
        return [batch.answers[job.request.id] for job in jobs]

    def _pieces(self, job: AnswerJob) -> Iterator[Piece]:
        collector = job.collector(self.tokenizer)
        self.engine.add(job.request)
        try:
            for event in self._events(job.request.id):
                yield collector.read(event)
                if collector.is_finished:
                    return
        finally:
            self.engine.abort(job.request.id)

    def _events(self, request_id: str) -> Iterator[Event]:
        while self.engine.has_work:
            for event in self.engine.step():
                if not isinstance(event, Scored) and event.request_id == request_id:
                    yield event


class _Batch:
    """The jobs of one call that are in the engine, and their answers."""

    def __init__(self, llm: LLM) -> None:
        self._engine, self._tokenizer = llm.engine, llm.tokenizer
        self._collectors: dict[str, AnswerCollector] = {}
        self._choices: dict[str, ChoiceJob] = {}
        self.answers: dict[str, Answer] = {}
        self.num_tokens = 0

    @property
    def num_open(self) -> int:
        return len(self._collectors) + len(self._choices)

    def start(self, job: Job) -> None:
        if isinstance(job, ChoiceJob):
            self._engine.add_score(job.request)
            self._choices[job.request.id] = job
            return
        if job.request.constraint is not None:
            allow_constraints(self._engine, self._tokenizer)
        self._engine.add(job.request)
        self._collectors[job.request.id] = job.collector(self._tokenizer)

    def read(self, event: Event | Scored) -> int:
        """Takes an event; returns the number of answers that it completes."""
        if isinstance(event, Scored):
            choice = self._choices.pop(event.request_id, None)
            if choice is None:
                return 0
            self.answers[event.request_id] = choice.answer(event.scores)
            return 1
        if event.request_id in self._choices and isinstance(event, Delta):
            raise QuicksilverError(event.error or "scoring failed")
        collector = self._collectors.get(event.request_id)
        if collector is None:
            return 0
        before = collector.num_tokens
        collector.read(event)
        self.num_tokens += collector.num_tokens - before
        if not collector.is_finished:
            return 0
        # A stop string ends an answer that the engine would continue.
        self._engine.abort(event.request_id)
        self.answers[event.request_id] = self._collectors.pop(event.request_id).answer()
        return 1

    def abort(self) -> None:
        for request_id in (*self._collectors, *self._choices):
            self._engine.abort(request_id)


def _sample(job: AnswerJob, offset: int) -> AnswerJob:
    request: Request = job.request
    params = replace(request.params, seed=request.params.seed + offset)
    return replace(job, request=replace(request, id=f"{request.id}.{offset}", params=params))
