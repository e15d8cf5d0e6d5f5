"""Runs tasks through an `EngineClient`, many items concurrently, each task under every requested decoder.

A failed item is counted and excluded from the means. A task that reaches its time limit keeps the items it has. The
sample of items depends only on the seed and the task, so two models are asked the same items. Answers are read by the
same code as in the server, so reasoning is not scored and tool calls are parsed identically.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, EngineClient, Request, ScoreRequest
from quicksilver.errors import InvalidRequest, QuicksilverError, RowFailed
from quicksilver.evals.catalogue import pick_tasks
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.report import Cell, Record, Report, machine_facts
from quicksilver.evals.sandbox import isolation
from quicksilver.evals.speed import Speed, speed_of, total
from quicksilver.evals.task import Answer, Ask, Generate, Task
from quicksilver.text.answer import AnswerReader, CollectedAnswer, ReadOptions
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import ToolCall
from quicksilver.text.tokenizer import Tokenizer

# Progress callback: called after every item with the task and decoder, the items done and the total.
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """Which tasks and items to run, and how."""

    # Folder with `eval/` and `train/`.
    data: Path
    # Names of tasks or groups.
    tasks: tuple[str, ...] = ("all",)
    # Items per task; 0 uses the default of each task.
    limit: int = 0
    decoders: tuple[DecoderParams, ...] = (DecoderParams(),)
    # Maximum number of items in flight.
    concurrency: int = 32
    # Time limit in seconds of one task under one decoder; 0 means no limit.
    seconds: float = 0.0
    seed: int = 0
    # Model name in the report; empty uses the engine's name.
    model: str = ""


def decoder_label(decoder: DecoderParams) -> str:
    if decoder.name is DecoderName.AR:
        return "ar"
    label = f"{decoder.name.value} K={decoder.canvas_len}"
    return label if decoder.name is DecoderName.VERIFY else f"{label} {decoder.rule.value} {decoder.threshold:g}"


async def run_evals(
    client: EngineClient,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    settings: EvalSettings,
    watch: Watch = lambda label, done, count: None,
) -> Report:
    run = _Run(client, PromptBuilder(tokenizer, template, client.info.context_len), settings, watch)
    cells: list[Cell] = []
    for task in pick_tasks(settings.tasks):
        cells += await run.task(task)
    shown = {**asdict(settings), "data": settings.data.name, "sandbox": isolation()}
    model = settings.model or client.info.model
    return Report(model, tuple(cells), shown, asdict(client.info), machine_facts())


@dataclass(frozen=True, slots=True)
class _Run:
    client: EngineClient
    writer: PromptBuilder
    settings: EvalSettings
    watch: Watch

    async def task(self, task: Task[Any]) -> list[Cell]:
        """Run one task. Returns one cell per decoder, or one cell if nothing is generated."""
        items = await asyncio.to_thread(choose_items, task, self.settings)
        if not items:
            raise InvalidRequest(f"the data has no items for {task.name}", param="data")
        is_decoded = isinstance(task.ask(items[0][1], self.writer), Generate)
        if not is_decoded:
            return [await self._cell(task, items, DecoderParams(DecoderName.AR), "likelihood")]
        return [await self._cell(task, items, decoder, decoder_label(decoder)) for decoder in self.settings.decoders]

    async def _cell(
        self, task: Task[Any], items: Sequence[tuple[int, Any]], decoder: DecoderParams, label: str
    ) -> Cell:
        started = time.monotonic()
        queue = iter(items)
        done: list[tuple[Record, Speed]] = []

        async def work() -> None:
            for index, item in queue:
                done.append(await self._item(task, index, item, decoder))
                self.watch(f"{task.name} ({label})", len(done), len(items))

        workers = [asyncio.create_task(work()) for _ in range(min(self.settings.concurrency, len(items)))]
        is_cut = await _finish(workers, self.settings.seconds or None)
        seconds = time.monotonic() - started
        records = sorted((record for record, _ in done), key=lambda record: record.index)
        good = [record.metrics for record in records if not record.error]
        return Cell(
            task.name,
            task.domain,
            label,
            task.headlines,
            metrics=task.summarise(good) if good else {},
            num_items=len(good),
            num_failed=len(records) - len(good),
            seconds=seconds,
            speed=total(speed for _, speed in done),
            is_cut=is_cut,
            is_lower_better=task.is_lower_better,
            records=tuple(records),
        )

    async def _item(self, task: Task[Any], index: int, item: Any, decoder: DecoderParams) -> tuple[Record, Speed]:
        request_id = f"eval-{task.name}-{decoder_label(decoder)}-{index}"
        try:
            ask = task.ask(item, self.writer)
            answer = await collect(self.client, self.writer.tokenizer, request_id, ask, decoder)
            metrics = await asyncio.to_thread(task.score, item, answer)
        except QuicksilverError as error:
            return Record(index, error=f"{error.code}: {error.message}"), Speed()
        calls = tuple((call.name, call.arguments) for call in answer.calls)
        return Record(index, answer.text, calls, metrics), speed_of(answer)


async def _finish(workers: Sequence[asyncio.Task[None]], seconds: float | None) -> bool:
    """Wait for all workers or the time limit. Returns whether some were cancelled. Other errors are raised."""
    finished, late = await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    failed = [task for task in finished if task.exception() is not None]
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in failed:
        task.result()
    return bool(late)


def choose_items(task: Task[Any], settings: EvalSettings) -> list[tuple[int, Any]]:
    """Choose the items with their indices: the first ones, or a sample determined by the seed."""
    limit = settings.limit or task.limit
    if task.takes_first:
        return list(enumerate(islice(task.load(settings.data), limit)))
    items = list(enumerate(task.load(settings.data)))
    if limit >= len(items):
        return items
    return sorted(random.Random(f"{settings.seed}/{task.name}").sample(items, limit), key=lambda pair: pair[0])


async def collect(
    client: EngineClient, tokenizer: Tokenizer, request_id: str, ask: Ask, decoder: DecoderParams
) -> Answer:
    """Tokens that the prompt gives (`num_given`) and text that the answer must repeat (`lead`) are left out."""
    if not isinstance(ask, Generate):
        scores = await client.score(ScoreRequest(request_id, ask.prompt_ids, ask.continuations))
        num_given = ask.num_given or (0,) * len(ask.continuations)
        return Answer(logprobs=tuple(part[skip:] for part, skip in zip(scores.logprobs, num_given, strict=True)))
    params = DecodeParams(
        max_new_tokens=ask.max_new_tokens, stop_ids=ask.stop_ids, logit_bias=ask.logit_bias, decoder=decoder
    )
    request = Request(request_id, ask.prompt_ids, params, constraint=ask.constraint)
    reader, answer = AnswerReader(request, ReadOptions(ask.stop, ask.tool_names), tokenizer), CollectedAnswer()
    async with aclosing(client.stream(request)) as events:  # type: ignore[type-var]
        async for event in events:
            for piece in reader.read(event):
                answer.add(piece)
            if reader.is_finished and isinstance(event, Delta):
                text, calls = answer.content.removeprefix(ask.lead), answer.calls
                parsed = tuple(ToolCall(call.name, call.arguments) for call in calls)
                return Answer(text, parsed, tuple(answer.token_ids), event.finish, event.usage)
    raise RowFailed("the stream ended without a last delta")
