"""The engine over its socket, and the whole server, with the time of both processes by phase.

`load.py --socket` reads streams of a worker process in this process. `load.py --server` is a server in this process
with one worker; client processes send requests over TCP. `api` phases are CPU time of this process: `socket` decodes
the worker's messages and passes their events on, `detokenise` turns tokens into text, and `http` is everything else.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.json_generations import CompilePoolContext
from benchmarks.load_clients import Arrivals, arrival_times, measure, summary_of
from benchmarks.load_engine import ENGINE_SETTINGS
from benchmarks.load_prompts import KINDS
from benchmarks.load_requests import RequestSource
from benchmarks.phase_clock import WORKER_PHASES, PhaseClock, SharedSeconds
from quicksilver.core import Delta, Request
from quicksilver.hub.resolve import ModelFiles, resolve
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.run import make_listener
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerReader
from quicksilver.worker import protocol
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.program import WorkerConfig

Measure = Callable[[int, int], Any]
API_PHASES = ("socket", "detokenise")


@dataclass
class Profile:
    """The phases of a worker and of this process."""

    engine: RemoteEngine
    worker: SharedSeconds
    api: PhaseClock = field(default_factory=lambda: PhaseClock(now=time.thread_time))

    @contextmanager
    def of_api(self) -> Iterator[None]:
        """Times this process within the block."""
        decoder, take, read = protocol.reply_decoder, RemoteEngine._take, AnswerReader.read
        protocol.reply_decoder = _TimedDecoder(self.api.timed("socket", decoder.decode))  # type: ignore[assignment]
        RemoteEngine._take = self.api.timed("socket", take)  # type: ignore[method-assign]
        AnswerReader.read = self.api.timed("detokenise", read)  # type: ignore[method-assign]
        try:
            yield
        finally:
            protocol.reply_decoder = decoder
            RemoteEngine._take, AnswerReader.read = take, read  # type: ignore[method-assign]

    def state(self) -> dict[str, float]:
        phases = {f"worker.{name}": self.worker[name] for name in WORKER_PHASES}
        phases |= {f"api.{name}": self.api.seconds[name] for name in API_PHASES}
        return phases | {"api.cpu": time.process_time(), "worker.cpu": cpu_seconds(self.engine.worker_pid or 0)}


@dataclass(frozen=True)
class _TimedDecoder:
    decode: Callable[..., Any]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def per_token(before: dict[str, float], after: dict[str, float], num_tokens: int) -> dict[str, Any]:
    """Microseconds per token by process and phase."""
    cost = {name: 1e6 * (after[name] - before[name]) / max(num_tokens, 1) for name in after}
    cost["api.http"] = cost["api.cpu"] - sum(cost[f"api.{name}"] for name in API_PHASES)
    return {
        f"{process}_us_per_token": {
            name.removeprefix(f"{process}."): round(us, 2)
            for name, us in cost.items()
            if name.startswith(f"{process}.")
        }
        for process in ("worker", "api")
    }


def run(
    options: Any, requests_of: Callable[[int, float], int], show: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The levels of the command line. `requests_of` returns the number of requests of a level."""
    return asyncio.run(_run(options, requests_of, show))


async def _run(
    options: Any, requests_of: Callable[[int, float], int], show: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    files, rows = resolve(options.model), []
    async with started_worker(options) as profile, measured(options, files, profile.engine) as level:
        await level(2, 4)
        with profile.of_api():
            for streams in options.streams:
                for _ in range(options.repeats):
                    before = profile.state()
                    row = await level(streams, requests_of(streams, options.scale))
                    rows.append(row | per_token(before, profile.state(), row["tokens"]))
                    show(rows[-1])
    return rows


@asynccontextmanager
async def started_worker(options: Any) -> AsyncIterator[Profile]:
    settings = {name: value for name, value in vars(options).items() if name in ENGINE_SETTINGS and value}
    config = WorkerConfig(options.model, {"weights": options.weights, "threads": options.threads}, settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases"
        seconds = SharedSeconds(path)
        command = [sys.executable, "-m", "benchmarks.load_worker", "--phases", str(path), *config.command()[3:]]
        engine = await RemoteEngine(command).start()
        try:
            yield Profile(engine, seconds)
        finally:
            await engine.close()


@asynccontextmanager
async def measured(options: Any, files: ModelFiles, engine: RemoteEngine) -> AsyncIterator[Measure]:
    """A function that runs one level of the given number of streams and requests."""
    source = RequestSource.of_model(files, options)
    if options.socket:
        yield lambda streams, count: socket_level(options, engine, source, streams, count)
        return
    async with CompilePoolContext() as pool:
        config = ServerConfig(host="127.0.0.1", port=0)
        app = build_app(Services(engine, source.tokenizer, source.template, pool, None, config))
        listener = make_listener(app, config.host, config.port, config)
        serving = asyncio.create_task(listener.serve())
        while not listener.started:
            await asyncio.sleep(0.01)
        options.url = f"http://127.0.0.1:{listener.servers[0].sockets[0].getsockname()[1]}"
        yield lambda streams, count: asyncio.to_thread(measure, options, streams, count)
        listener.should_exit = True
        await serving


async def socket_level(
    options: Any, engine: RemoteEngine, source: RequestSource, streams: int, count: int
) -> dict[str, Any]:
    """`streams` requests at a time, in a closed loop or at Poisson times."""
    kinds = ("json",) if options.schema else KINDS
    requests = source.mixed(count, kinds, options.max_tokens, options.schema)
    gate = asyncio.Semaphore(streams)

    async def answered(request: Request, arrival: float | None) -> Arrivals:
        if arrival is not None:
            await asyncio.sleep(max(arrival - time.monotonic(), 0.0))
        async with gate:
            return await read_stream(engine, request, arrival)

    times = arrival_times(options.rate, len(requests), seed=0)
    return summary_of(streams, await asyncio.gather(*map(answered, requests, times)))


async def read_stream(engine: RemoteEngine, request: Request, arrival: float | None) -> Arrivals:
    found = Arrivals(time.monotonic() if arrival is None else arrival)
    async for event in engine.stream(request):
        if isinstance(event, Delta):
            assert event.error is None, event.error
            found.times.append(time.monotonic())
            found.num_tokens += len(event.token_ids)
    return found
