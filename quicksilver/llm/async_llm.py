"""AsyncLLM: the methods of LLM for asyncio. The engine runs on a thread of its own; concurrent calls are one batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

from quicksilver.core import DecodeParams
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig
from quicksilver.llm.answers import Answer, Piece
from quicksilver.llm.jobs import AnswerJob, AnswerOptions, ChoiceJob, Job, is_batch, make_options
from quicksilver.llm.loading import allow_constraints, load_parts, max_open
from quicksilver.text.messages import Conversation
from quicksilver.worker.async_engine import AsyncEngine


class AsyncLLM:
    """A loaded model for one event loop. `async with AsyncLLM("nano") as llm:` closes it at the end."""

    def __init__(
        self,
        model: str,
        load: LoadConfig | None = None,
        config: EngineConfig | None = None,
        *,
        system_prompt: str | None = None,
        adapters: Sequence[Path | str] = (),
    ) -> None:
        engine, self._builder = load_parts(model, load, config, system_prompt, adapters)
        self.tokenizer, self.template = self._builder.tokenizer, self._builder.template
        allow_constraints(engine, self.tokenizer)
        self.engine = AsyncEngine(engine)
        self._max_open = max_open(engine.config)

    async def generate(
        self,
        prompts: str | Sequence[str],
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
    ) -> Any:
        """Continue a prompt, or every prompt of a list; returns an Answer or a list of them. Options as in LLM."""
        options = make_options(params, stop, schema, regex, choice)
        answers = await self._run_all(self._builder.text_jobs(prompts, options))
        return answers[0] if isinstance(prompts, str) else answers

    async def chat(
        self,
        messages: Any,
        params: DecodeParams | None = None,
        stop: Sequence[str] | str = (),
        *,
        effort: str | None = None,
        schema: Any = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
    ) -> Any:
        """Answer a conversation, or every conversation of a list; returns an Answer or a list of them."""
        options = make_options(params, stop, schema, regex, choice, effort)
        answers = await self._run_all(self._builder.chat_jobs(messages, options))
        return answers if is_batch(messages) else answers[0]

    async def stream(
        self, messages: Conversation, params: DecodeParams | None = None, *, effort: str | None = None
    ) -> AsyncGenerator[Piece, None]:
        """The answer to a conversation as it is committed. Closing the generator aborts the request."""
        job = self._builder.chat_job(messages, AnswerOptions(params or DecodeParams(), effort=effort))
        assert isinstance(job, AnswerJob)
        collector = job.collector(self.tokenizer)
        async with aclosing(self.engine.stream(job.request)) as events:
            async for event in events:
                yield collector.read(event)
                if collector.is_finished:
                    return

    async def close(self) -> None:
        """End the engine's thread. Open calls raise EngineDied."""
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run_all(self, jobs: Sequence[Job]) -> list[Answer]:
        """At most `_max_open` jobs are in the engine at the same time."""
        slots = asyncio.Semaphore(self._max_open)

        async def run(job: Job) -> Answer:
            async with slots:
                return await self._run(job)

        return await asyncio.gather(*map(run, jobs))

    async def _run(self, job: Job) -> Answer:
        if isinstance(job, ChoiceJob):
            return job.answer(await self.engine.score(job.request))
        collector = job.collector(self.tokenizer)
        async with aclosing(self.engine.stream(job.request)) as events:
            async for event in events:
                collector.read(event)
                if collector.is_finished:
                    break
        return collector.answer()
