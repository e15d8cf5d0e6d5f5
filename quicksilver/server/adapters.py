"""Adapters that are served under a model name of their own, and the engine client that applies one to every request.

A request that names an adapter runs in the worker of its base model, in one batch with the other requests there.
Adapters that the command line names are models of the server. Further ones come from an `AdapterSource`, which may
return other adapters to each tenant: `TunedAdapters` returns the tuned models of each project.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from quicksilver.adapters import AdapterRef, stacked
from quicksilver.core import (
    EngineClient,
    EngineHealth,
    EngineInfo,
    EngineStats,
    Event,
    Request,
    ScoreRequest,
    Scores,
)
from quicksilver.errors import ModelNotFound
from quicksilver.server.storage import Storage
from quicksilver.tuning.models import ADAPTERS, PREFIX, TunedModel, adapter_file, adapter_path, find_model, list_models


@runtime_checkable
class LoadableEngine(Protocol):
    """An engine client whose model is loaded on demand."""

    @property
    def is_loaded(self) -> bool:
        """Whether `load` returns at once."""

    async def load(self) -> None:
        """Returns when the model is loaded. Raises EngineUnavailable if that takes longer than a request may wait."""


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter under the name that requests use."""

    name: str
    # Id of the model that it belongs to, which this server serves.
    base: str
    adapter: AdapterRef
    # Seconds since the epoch; 0 prints the server's start.
    created: int = 0
    owned_by: str = "quicksilver"


class AdapterSource(Protocol):
    """Adapters that come and go while the server runs. `tenant` is the project of the caller, empty without accounts.

    An adapter that was trained again has another hash: the source returns it from the next request on, and requests
    that run keep the old one.
    """

    async def find(self, name: str, tenant: str) -> ServedAdapter | None:
        """None if there is no such adapter, or if this tenant may not use it."""

    async def list(self, tenant: str) -> Sequence[ServedAdapter]:
        """The adapters that this tenant may use, in the order of the model list."""


class WrappedEngine:
    """An engine client that calls another one. Subclasses override what they change."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def is_ready(self) -> bool:
        return self.engine.is_ready

    @property
    def is_loaded(self) -> bool:
        return not isinstance(self.engine, LoadableEngine) or self.engine.is_loaded

    async def load(self) -> None:
        if isinstance(self.engine, LoadableEngine):
            await self.engine.load()

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        async with aclosing(self.engine.stream(request)) as events:
            async for event in events:
                yield event

    async def score(self, request: ScoreRequest) -> Scores:
        return await self.engine.score(request)

    async def stats(self) -> EngineStats:
        return await self.engine.stats()

    def health(self) -> EngineHealth:
        return self.engine.health()

    async def close(self) -> None:
        """The other client is closed by its owner."""


class AdapterEngine(WrappedEngine):
    """The engine client of a base model whose requests all use one adapter.

    The base may itself be an adapter of another model. A request then has both, that of the base first.
    """

    def __init__(self, name: str, engine: EngineClient, adapter: AdapterRef) -> None:
        super().__init__(engine)
        self.name, self.adapter = name, adapter

    @property
    def info(self) -> EngineInfo:
        info = self.engine.info
        digest = hashlib.sha256(f"{info.fingerprint}\0{self.adapter.id}".encode()).hexdigest()[:16]
        return replace(info, model=self.name, fingerprint=f"fp_{digest}")

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        self._check_support()
        return super().stream(replace(request, adapter=self._with(request.adapter)))

    async def score(self, request: ScoreRequest) -> Scores:
        self._check_support()
        return await super().score(replace(request, adapter=self._with(request.adapter)))

    def _with(self, other: AdapterRef | None) -> AdapterRef:
        """The adapter of a request. `other` is an adapter that was trained on this model."""
        return self.adapter if other is None else stacked(self.adapter, other)

    def _check_support(self) -> None:
        info = self.engine.info
        if not info.supports_adapters:
            raise ModelNotFound(
                f"{self.name}: the engine of {info.model} on {info.device} cannot apply adapters to single requests; "
                "give it memory with adapter_bytes, serve the base with --no-cuda-graphs or --device cpu, or merge the "
                "adapter with --adapter PATH",
                param="model",
            )


class TunedAdapters:
    """Implements `server.adapters.AdapterSource`. Adapter files are copied from the store into `home` on first use."""

    def __init__(self, storage: Storage, home: Path) -> None:
        self._storage = storage
        self._folder = home / ADAPTERS

    async def find(self, name: str, tenant: str) -> ServedAdapter | None:
        if not name.startswith(PREFIX) or not self._storage.has_objects:
            return None
        model = await self._storage.run(lambda store: find_model(store, tenant, name))
        if model is None or model.is_proposed:
            return None
        await self._storage.run(lambda store: adapter_file(store, tenant, model, self._folder))
        return self._served(model)

    async def list(self, tenant: str) -> Sequence[ServedAdapter]:
        if not self._storage.has_objects:
            return []
        models = await self._storage.run(lambda store: list(list_models(store, tenant)))
        return [self._served(model) for model in models if not model.is_proposed]

    def _served(self, model: TunedModel) -> ServedAdapter:
        ref = AdapterRef(model.sha256, str(adapter_path(self._folder, model)))
        return ServedAdapter(model.id, model.base, ref, model.created_at, owned_by="user")
