"""A worker with the tiny random model: `python -m tests.worker.worker_program [options] --socket PATH`."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from quicksilver.backends.base import Outcome, Work
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.server import serve
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer
from tests.support.tiny import TINY, tiny_engine, tiny_model


def disturb(engine: Engine, options: argparse.Namespace) -> None:
    """Makes forwards slow, hang or end the process, as the options say."""
    run = engine.backend.run

    def disturbed(works: Sequence[Work]) -> list[Outcome | None]:
        time.sleep(options.forward_s)
        for sequence in [work.sequence for work in works]:
            while sequence.id == options.hang_on:
                time.sleep(0.1)
            if sequence.id == options.die_on and len(sequence.generated) >= 3:
                os._exit(1)
        return run(works)

    engine.backend.run = disturbed  # type: ignore[method-assign]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=TINY.vocab_size)
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds that loading the model takes")
    parser.add_argument("--hang-on", default="", help="id of a request whose forward never ends")
    parser.add_argument("--die-on", default="", help="id of a request whose fourth token ends the process")
    parser.add_argument("--forward-s", type=float, default=0.0, help="seconds added to every forward")
    parser.add_argument("--num-pages", type=int, default=64)
    options = parser.parse_args(argv)
    time.sleep(options.load_s)
    config = EngineConfig(num_pages=options.num_pages, max_rows=96)
    engine = tiny_engine(config, tiny_model(vocab_size=options.vocab_size))
    if options.vocab_size == VOCAB_SIZE:
        tokenizer = small_tokenizer()
        engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE).constraint
    disturb(engine, options)
    asyncio.run(serve(AsyncEngine(engine), options.socket))


if __name__ == "__main__":
    main()
