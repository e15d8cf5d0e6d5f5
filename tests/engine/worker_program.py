"""A worker with the tiny random model: `python -m tests.engine.worker_program --socket PATH`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from quicksilver.engine.loop import AsyncEngine
from quicksilver.engine.serve import serve
from tests.tiny import tiny_engine

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    asyncio.run(serve(AsyncEngine(tiny_engine()), parser.parse_args().socket))
