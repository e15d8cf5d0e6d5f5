"""EnginePool: several models, each with a worker process of its own, loaded on demand and unloaded when idle.

One model is loaded at a time. A model that does not fit into memory is loaded after the models that were unused for the
longest time are unloaded; a model with open requests, or a pinned one, is never unloaded. Requests for a model that is
loading wait within bounds and are then refused with EngineUnavailable, which has a retry delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from quicksilver.adapters import AdapterInfo, AdapterRef
from quicksilver.core import (
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    Request,
    ScoreRequest,
    Scores,
    setting,
)
from quicksilver.errors import EngineUnavailable, QuicksilverError
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.process import available_bytes
from quicksilver.worker.program import WorkerConfig

log = logging.getLogger("quicksilver.models")

# Retry delay of a refused request while the duration of a load is unknown, and after a load has failed.
FIRST_RETRY_S, FAILED_RETRY_S = 5.0, 10.0
# Memory of loaded weights relative to the size of their files: few-bit files are expanded.
GGUF_EXPANSION, SAFETENSORS_EXPANSION = 3.0, 1.25


@dataclass(frozen=True, slots=True)
class ModelPoolConfig:
    """When models are loaded and unloaded."""

    idle_unload_s: float = setting(0.0, "Seconds without a request after which a model is unloaded; 0: never.")
    load_wait_s: float = setting(30.0, "Seconds that a request waits for a model that is loading.")
    spare: bool = setting(True, "On a CPU, keep a second worker of a single model loaded, which takes over at once.")
    max_load_waiting: int = setting(64, "Requests that wait for one model that is loading; further ones are refused.")


@dataclass(frozen=True, slots=True)
class PooledModel:
    """One model of a pool."""

    name: str
    worker: WorkerConfig
    is_pinned: bool = False
    # Memory that it needs, until it has been loaded once and was measured.
    estimated_bytes: int = 0


StartEngine = Callable[[WorkerConfig], RemoteEngine]


class EnginePool:
    """`start`, then `engines`, then `close`; all on one event loop. The first model is the default."""

    def __init__(
        self,
        models: Sequence[PooledModel],
        config: ModelPoolConfig | None = None,
        start_engine: StartEngine = lambda worker: RemoteEngine(worker.command()),
    ) -> None:
        self.config = config or ModelPoolConfig()
        self.engines = {model.name: PooledEngine(model, self) for model in models}
        self._start_engine = start_engine
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> EnginePool:
        """Returns when the default model is loaded; raises if it cannot be. The others are loaded afterwards."""
        first, *others = self.engines.values()
        await first.begin_load()
        self._tasks.append(asyncio.create_task(self._load_all(others)))
        if self.config.idle_unload_s > 0:
            self._tasks.append(asyncio.create_task(self._unload_idle()))
        return self

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))

    async def load(self, engine: PooledEngine) -> RemoteEngine:
        """A started engine for the model. Called by `PooledEngine.begin_load` only."""
        async with self._lock:
            await self._make_room(engine)
            log.info("loading", extra={"model": engine.model.name})
            remote = self._start_engine(self._planned(engine))
            remote.has_spare = self.config.spare and len(self.engines) == 1
            try:
                return await remote.start()
            except BaseException:
                await remote.close()
                raise

    def _planned(self, engine: PooledEngine) -> WorkerConfig:
        """The worker's configuration with its share of memory and what the other models still need."""
        if len(self.engines) == 1:
            return engine.model.worker
        rest = (other for other in self.engines.values() if other is not engine and not other.is_loaded)
        plan = {"memory_share": 1 / len(self.engines), "reserved_bytes": sum(other.needed_bytes for other in rest)}
        return replace(engine.model.worker, engine={**engine.model.worker.engine, **plan})

    async def _make_room(self, engine: PooledEngine) -> None:
        """Unloads idle models until `engine` fits. The memory of a GPU is checked by the worker itself."""
        while self._uses_ram and available_bytes() < engine.needed_bytes:
            if not await self._unload_oldest(engine):
                busy = ", ".join(each.model.name for each in self.engines.values() if each.is_loaded) or "none"
                raise EngineUnavailable(
                    f"there is not enough memory to load {engine.model.name} now (loaded: {busy})",
                    retry_after_s=FAILED_RETRY_S,
                )

    @property
    def _uses_ram(self) -> bool:
        return any(info.device == "cpu" for each in self.engines.values() if (info := each.known_info) is not None)

    async def _unload_oldest(self, wanted: PooledEngine) -> bool:
        candidates = [each for each in self.engines.values() if each is not wanted and each.can_unload]
        if not candidates:
            return False
        await min(candidates, key=lambda each: each.last_used).unload()
        return True

    async def _load_all(self, engines: Sequence[PooledEngine]) -> None:
        for engine in engines:
            try:
                await engine.begin_load()
            except QuicksilverError as error:
                log.warning("not loaded at start: %s", error.message, extra={"model": engine.model.name})

    async def _unload_idle(self) -> None:
        limit_s = self.config.idle_unload_s
        while True:
            await asyncio.sleep(min(max(limit_s / 4, 0.05), 5.0))
            now = asyncio.get_running_loop().time()
            for engine in self.engines.values():
                if engine.can_unload and now - engine.last_used >= limit_s:
                    await engine.unload()


class PooledEngine:
    """The EngineClient of one model of a pool."""

    def __init__(self, model: PooledModel, pool: EnginePool) -> None:
        self.model = model
        self.last_used = 0.0  # event loop time
        # Open requests of other processes, which use the worker's socket directly.
        self.num_open_elsewhere = 0
        self._pool = pool
        self._engine: RemoteEngine | None = None
        self._info: EngineInfo | None = None
        self._loading: asyncio.Task[None] | None = None
        self._num_open = 0
        self._num_waiting = 0
        self._load_s: float | None = None
        self._load_began = 0.0
        self._failed_at: float | None = None
        self._measured_bytes = 0
        self._is_closed = False

    @property
    def is_loaded(self) -> bool:
        return self._engine is not None

    @property
    def can_unload(self) -> bool:
        # A request that waited for the load counts before it is open.
        in_use = self._num_open or self._num_waiting or self.num_open_elsewhere
        return self.is_loaded and not (self.model.is_pinned or in_use)

    @property
    def needed_bytes(self) -> int:
        return self._measured_bytes or self.model.estimated_bytes

    @property
    def known_info(self) -> EngineInfo | None:
        return self._info

    @property
    def socket_path(self) -> Path | None:
        """The socket of the worker; None while the model is not loaded."""
        return self._engine.socket_path if self._engine is not None else None

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailable(f"{self.model.name} has not been loaded yet")
        return self._info

    @property
    def is_ready(self) -> bool:
        return self._engine is not None and self._engine.is_ready

    def health(self) -> EngineHealth:
        if self._engine is not None:
            return self._engine.health()
        if self._is_closed:
            return EngineHealth(EngineState.CLOSED)
        return EngineHealth(EngineState.STARTING if self._loading is not None else EngineState.UNLOADED)

    async def load(self) -> None:
        """Returns when the model is loaded; starts loading it if nothing else has."""
        self.touch()
        if self._engine is not None:
            return
        if self._num_waiting >= self._pool.config.max_load_waiting:
            raise EngineUnavailable(
                f"{self.model.name} is loading and {self._num_waiting} requests wait for it",
                retry_after_s=self._retry_s(),
            )
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._pool.config.load_wait_s):
                await self.begin_load()
        except TimeoutError:
            raise EngineUnavailable(
                f"{self.model.name} is loading; retry shortly", retry_after_s=self._retry_s()
            ) from None
        finally:
            self._num_waiting -= 1

    async def _loaded(self) -> RemoteEngine:
        await self.load()
        if self._engine is None:
            raise EngineUnavailable(f"{self.model.name} was unloaded; retry shortly")
        return self._engine

    async def begin_load(self) -> None:
        """Starts loading, or joins a load that has begun, and waits for its end without a limit. Returns at once if the
        model is loaded."""
        if self._engine is not None:
            return
        now = asyncio.get_running_loop().time()
        if self._failed_at is not None and now - self._failed_at < FAILED_RETRY_S:
            raise EngineUnavailable(f"{self.model.name} could not be loaded", retry_after_s=FAILED_RETRY_S)
        if self._loading is None:
            self._load_began = now
            self._loading = asyncio.create_task(self._load())
            self._loading.add_done_callback(_retrieve_exception)
        # A caller that leaves does not cancel the load for the others.
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._engine = await self._pool.load(self)
            self._info = self._engine.info
            self._load_s = loop.time() - self._load_began
            self._failed_at = None
            self._measured_bytes = resident_bytes(self._engine.worker_pid)
        except EngineUnavailable:
            self._failed_at = loop.time()
            raise
        finally:
            self.touch()
            self._loading = None

    async def unload(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            log.info("unloading", extra={"model": self.model.name})
            await engine.close()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        engine = await self._loaded()
        with self._in_use():
            async with aclosing(engine.stream(request)) as events:
                async for event in events:
                    yield event

    async def score(self, request: ScoreRequest) -> Scores:
        engine = await self._loaded()
        with self._in_use():
            return await engine.score(request)

    async def load_adapter(self, adapter: AdapterRef) -> AdapterInfo:
        engine = await self._loaded()
        with self._in_use():
            return await engine.load_adapter(adapter)

    async def unload_adapter(self, adapter_id: str) -> bool:
        return await self._engine.unload_adapter(adapter_id) if self._engine is not None else False

    async def list_adapters(self) -> tuple[AdapterInfo, ...]:
        return await self._engine.list_adapters() if self._engine is not None else ()

    async def stats(self) -> EngineStats:
        return await self._engine.stats() if self._engine is not None else EngineStats()

    async def close(self) -> None:
        self._is_closed = True
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuicksilverError):
                await self._loading
        await self.unload()

    def touch(self) -> None:
        """Restarts the time after which an idle model is unloaded."""
        self.last_used = asyncio.get_running_loop().time()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            self.touch()

    def _retry_s(self) -> float:
        """Until the load should have ended, from how long the last one took."""
        if self._load_s is None or self._loading is None:
            return FIRST_RETRY_S
        elapsed_s = asyncio.get_running_loop().time() - self._load_began
        return float(max(1, math.ceil(self._load_s - elapsed_s)))


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Prevents asyncio's warning about a failed load that no request waits for any more."""
    if not task.cancelled():
        task.exception()


def estimate_bytes(weights: Path) -> int:
    """Memory for the weights of a checkpoint, from the size of its files."""
    if weights.is_dir():
        size = sum(path.stat().st_size for path in weights.glob("*.safetensors"))
        return int(size * SAFETENSORS_EXPANSION)
    return int(weights.stat().st_size * GGUF_EXPANSION)


def resident_bytes(pid: int | None) -> int:
    """Memory of a process; 0 if it is unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) * 1024 if found else 0
