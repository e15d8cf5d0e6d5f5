"""A worker with the tiny random model: `python -m tests.worker.worker_program [options] --socket PATH`."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from quicksilver.engine.engine import Engine, StepEvent
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.server import serve
from tests.support.tiny import TINY, tiny_engine, tiny_model


def hang_on(engine: Engine, request_id: str) -> None:
    """A step with this request never ends."""
    step = engine.step

    def hanging() -> list[StepEvent]:
        while request_id in engine._sequences:
            time.sleep(0.1)
        return step()

    engine.step = hanging  # type: ignore[method-assign]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=TINY.vocab_size)
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds that loading the model takes")
    parser.add_argument("--hang-on", default="", help="id of a request whose step never ends")
    options = parser.parse_args()
    time.sleep(options.load_s)
    engine = tiny_engine(model=tiny_model(vocab_size=options.vocab_size))
    hang_on(engine, options.hang_on)
    asyncio.run(serve(AsyncEngine(engine), options.socket))
