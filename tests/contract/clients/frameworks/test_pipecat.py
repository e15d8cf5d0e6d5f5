"""Pipecat's service for Inception: text frames in, text frames out."""

from __future__ import annotations

import asyncio
from typing import Any

from conftest import Server
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import ErrorFrame, Frame, LLMContextFrame, LLMTextFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.inception.llm import InceptionLLMService
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS, user

WEATHER = FunctionSchema("weather", "Current weather of a city", {"city": {"type": "string"}}, ["city"])


class Collector(FrameProcessor):
    """Keeps the text and the errors that reach the end of the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.has_text, self.has_city = asyncio.Event(), asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame):
            self.text += frame.text
            self.has_text.set()
            if CITY in self.text:
                self.has_city.set()
        await self.push_frame(frame, direction)


def service(server: Server, model: str = "mercury-2", limit: int = LIMIT) -> InceptionLLMService:
    settings = InceptionLLMService.Settings(model=model, temperature=0, max_tokens=limit)
    return InceptionLLMService(api_key="none", base_url=server.v1, settings=settings)


def pipeline_of(llm: InceptionLLMService) -> tuple[PipelineTask, Collector]:
    collector = Collector()
    return PipelineTask(Pipeline([llm, collector]), idle_timeout_secs=None), collector


async def run_until(task: PipelineTask, event: asyncio.Event, text: str, tools: ToolsSchema | None = None) -> None:
    """Run one turn of the pipeline until `event` is set, then cancel it as an interruption would."""
    fields: dict[str, Any] = {"tools": tools} if tools else {}
    await task.queue_frame(LLMContextFrame(LLMContext(user(text), **fields)))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    await asyncio.wait_for(event.wait(), 50)
    await task.cancel()
    await asyncio.wait_for(running, 20)


async def test_turn(server: Server) -> None:
    task, collector = pipeline_of(service(server))
    await run_until(task, collector.has_city, QUESTION)
    assert CITY in collector.text


async def test_tool(scripted: Server) -> None:
    llm = service(scripted)
    called = asyncio.Event()
    seen: list[str] = []

    async def weather(params: Any) -> None:
        seen.append(params.arguments["city"])
        called.set()
        await params.result_callback({"weather": "sunny"})

    llm.register_function("weather", weather)
    tools = ToolsSchema(standard_tools=[WEATHER])
    task, _ = pipeline_of(llm)
    await run_until(task, called, ASK_WEATHER, tools)
    assert seen
    assert all(isinstance(city, str) for city in seen)


async def test_error(server: Server) -> None:
    llm = service(server, "gpt-9")
    failed = asyncio.Event()
    task, _ = pipeline_of(llm)
    messages: list[str] = []

    @task.event_handler("on_pipeline_error")
    async def on_error(_: PipelineTask, frame: ErrorFrame) -> None:
        messages.append(str(frame.error))
        failed.set()

    await run_until(task, failed, QUESTION)
    assert "not found" in messages[0]


async def test_abort(server: Server) -> None:
    task, collector = pipeline_of(service(server, limit=STORY_TOKENS))
    with server.expecting_an_abort():
        await run_until(task, collector.has_text, STORY)
