"""Voice turns with barge-in, with Pipecat: text in, clauses out, and a listener who interrupts.

Speech recognition and synthesis are left out: a turn begins with the text of the user and is spoken clause by clause.
In every second turn the user interrupts after the first words. The service then closes its stream, and the server gives
the slot of the request back within one step of the engine.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from statistics import median

from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.inception.llm import InceptionLLMService

from examples.frameworks.counters import compare, parser, read, with_decoder

TURNS = ("What can you cook with rice?", "Tell me about the sea.", "How do I sleep better?", "Why is the sky blue?")
CLAUSE = re.compile(r"[,.;:!?]")


class Speaker(FrameProcessor):
    """Stands for speech synthesis: keeps the text of the turn and when its first clause was complete. Frames before the
    start of the turn's response belong to the turn before."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.text, self.started, self.clause_s = "", time.perf_counter(), 0.0
        self.has_text, self.has_ended, self.is_open = asyncio.Event(), asyncio.Event(), False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):
            self.is_open = True
        elif isinstance(frame, LLMTextFrame) and self.is_open:
            self.text += frame.text
            self.has_text.set()
            if not self.clause_s and CLAUSE.search(self.text):
                self.clause_s = time.perf_counter() - self.started
        elif isinstance(frame, LLMFullResponseEndFrame | InterruptionFrame) and self.is_open:
            self.has_ended.set()
        await self.push_frame(frame, direction)


@dataclass
class Call:
    texts: list[str] = field(default_factory=list)
    # Seconds from the end of a turn of the user to the first clause of the answer.
    clause_s: list[float] = field(default_factory=list)
    num_interrupted: int = 0


def service(url: str, model: str, key: str, decoder: str, max_tokens: int) -> InceptionLLMService:
    settings = InceptionLLMService.Settings(
        model=model, temperature=0, max_tokens=max_tokens, extra={"extra_body": with_decoder(decoder)}
    )
    return InceptionLLMService(api_key=key, base_url=f"{url}/v1", settings=settings)


async def talk(llm: InceptionLLMService, num_turns: int) -> Call:
    """One call. The user interrupts every second turn after its first words."""
    call, speaker = Call(), Speaker()
    task = PipelineTask(Pipeline([llm, speaker]), idle_timeout_secs=None)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    for turn in range(num_turns):
        speaker.begin()
        question = {"role": "user", "content": TURNS[turn % len(TURNS)]}
        await task.queue_frame(LLMContextFrame(LLMContext([question])))
        await asyncio.wait_for(speaker.has_text.wait(), 60)
        if turn % 2:
            await task.queue_frame(InterruptionFrame())
            call.num_interrupted += 1
        await asyncio.wait_for(speaker.has_ended.wait(), 60)
        call.texts.append(speaker.text)
        call.clause_s += [speaker.clause_s] if speaker.clause_s else []
    await task.cancel()
    await asyncio.wait_for(running, 20)
    return call


async def main() -> None:
    options = parser(__doc__)
    options.add_argument("--turns", type=int, default=8)
    arguments = options.parse_args()

    async def run(decoder: str) -> Call:
        llm = service(arguments.url, arguments.model, arguments.key, decoder, max_tokens=48)
        call = await talk(llm, arguments.turns)
        print(f"{decoder}: first clause after {median(call.clause_s or [0.0]):.2f} s")
        return call

    call = await compare(arguments.admin_url, run, arguments.metrics_key)
    running = "num_requests_running"
    left = read(arguments.admin_url, running, key=arguments.metrics_key)[running]
    print(f"{len(call.texts)} turns, {call.num_interrupted} interrupted; requests still running: {left:.0f}")


if __name__ == "__main__":
    asyncio.run(main())
