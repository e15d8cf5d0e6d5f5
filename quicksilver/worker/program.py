"""The program of the engine worker: `python -m quicksilver.worker --socket PATH --config JSON`.

`worker.client.RemoteEngine` starts and supervises it. The worker loads the weights and the tokenizer and builds
grammars; the API process never imports torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from quicksilver.engine.config import EngineConfig
from quicksilver.hub.resolve import ModelFiles, resolve
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.collector import collect_rarely

if TYPE_CHECKING:
    from quicksilver.engine.engine import ConstraintFactory


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration of a worker, passed as JSON on its command line."""

    model: str
    load: dict[str, Any] = field(default_factory=dict)  # fields of LoadConfig
    engine: dict[str, Any] = field(default_factory=dict)  # fields of EngineConfig
    adapters: list[str] = field(default_factory=list)  # adapter files that replace the model's own

    def command(self) -> list[str]:
        return [sys.executable, "-m", "quicksilver.worker", "--config", json.dumps(asdict(self))]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    args = parser.parse_args(argv)
    # Ctrl-C in a terminal reaches every process of the group. The parent drains its requests, then stops the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_start(sys.stderr)
    asyncio.run(_serve(WorkerConfig(**args.config), args.socket))


def show_start(stream: TextIO) -> None:
    """Writes what the backend compiles and captures while it starts. On a terminal a line first erases the status line
    of the parent process."""
    handler = logging.StreamHandler(stream)
    erase = "\r\x1b[2K" if stream.isatty() else ""
    handler.setFormatter(logging.Formatter(f"{erase}engine worker: %(message)s"))
    log = logging.getLogger("quicksilver.start")
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


async def _serve(config: WorkerConfig, socket_path: Path) -> None:
    from quicksilver.engine.load import LoadConfig, for_serving, load_engine
    from quicksilver.worker.async_engine import AsyncEngine
    from quicksilver.worker.server import serve

    checkpoint = resolve(config.model).with_adapters(map(Path, config.adapters))
    load = LoadConfig(**config.load)
    engine = load_engine(checkpoint, load, for_serving(EngineConfig(**config.engine), load))
    engine.constraints = _constraints(checkpoint, engine.info.vocab_size)
    engine.warm_up()
    collect_rarely()
    await serve(AsyncEngine(engine), socket_path)


def _constraints(checkpoint: ModelFiles, vocab_size: int) -> ConstraintFactory:
    """Builds grammars over the checkpoint's own tokenizer."""
    from quicksilver.constrain.runtime.matcher import Grammars

    tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
    return Grammars(tokenizer.to_json(), tokenizer.eos_ids, vocab_size).constraint
