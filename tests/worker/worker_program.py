"""A worker with the tiny random model: `python -m tests.worker.worker_program [options] --socket PATH`."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from quicksilver.backends.base import Outcome, Work
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.server import serve
from tests.support.dialects import dialect_model
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer
from tests.support.tiny import TINY, tiny_engine, tiny_model


def disturb(engine: Engine, options: argparse.Namespace) -> None:
    """Makes forwards slow, hang, or end the process or the engine's thread, as the options say."""
    run, forward = engine.backend.run, engine._forward

    def disturbed(works: Sequence[Work]) -> list[Outcome | None]:
        time.sleep(options.forward_s)
        for sequence in [work.sequence for work in works]:
            while is_one_of(sequence.id, [options.hang_on]):
                time.sleep(0.1)
            is_fatal = is_one_of(sequence.id, options.die_on) or is_in(options.die_on_text, sequence.request.prompt_ids)
            if is_fatal and len(sequence.generated) >= 3:
                os._exit(1)
        return run(works)

    def faulty(works: list[Work]) -> list[tuple[Work, Outcome | None]]:
        if any(is_one_of(work.sequence.id, [options.raise_on]) for work in works):
            raise RuntimeError("a fault of the engine, not of one sequence")
        return forward(works)

    engine.backend.run = disturbed  # type: ignore[method-assign]
    engine._forward = faulty  # type: ignore[method-assign]


def is_one_of(sequence_id: str, request_ids: Collection[str]) -> bool:
    """Whether the sequence belongs to one of these requests, under its first id or a later one."""
    return sequence_id.partition("#")[0] in request_ids


def is_in(text: str, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt of the small tokenizer, with one token per byte, has this text; no prompt has the empty one."""
    return bool(text) and text.encode() in bytes(token % 256 for token in prompt_ids)


async def wait_closed(server: asyncio.Server) -> None:
    """`Server.wait_closed` of Python 3.12, which waits until all connections have ended."""
    while server._active_count:  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=TINY.vocab_size)
    parser.add_argument("--family", default="", help="one of tests.support.dialects.DIALECTS instead of a plain model")
    parser.add_argument("--load-s", type=float, default=0.0, help="seconds that loading the model takes")
    parser.add_argument("--hang-on", default="", help="id of a request whose forward never ends")
    parser.add_argument("--die-on", action="append", default=[], help="id of a request whose fourth token is fatal")
    parser.add_argument("--die-on-text", default="", help="the same for every prompt with this text")
    parser.add_argument("--raise-on", default="", help="id of a request whose forward ends the engine's thread")
    parser.add_argument("--forward-s", type=float, default=0.0, help="seconds added to every forward")
    parser.add_argument("--num-pages", type=int, default=64)
    options = parser.parse_args(argv)
    time.sleep(options.load_s)
    config = EngineConfig(num_pages=options.num_pages, max_rows=96)
    make_model = partial(dialect_model, options.family) if options.family else tiny_model
    engine = tiny_engine(config, make_model(vocab_size=options.vocab_size))
    if options.vocab_size == VOCAB_SIZE:
        tokenizer = small_tokenizer()
        engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE).constraint
    disturb(engine, options)
    asyncio.Server.wait_closed = wait_closed  # type: ignore[method-assign]
    asyncio.run(serve(AsyncEngine(engine), options.socket))


if __name__ == "__main__":
    main()
