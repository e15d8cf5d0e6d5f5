"""A worker with the tiny random model: `python -m tests.worker.worker_program [--vocab-size N] --socket PATH`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.server import serve
from tests.support.tiny import TINY, tiny_engine, tiny_model

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=TINY.vocab_size)
    options = parser.parse_args()
    engine = tiny_engine(model=tiny_model(vocab_size=options.vocab_size))
    asyncio.run(serve(AsyncEngine(engine), options.socket))
