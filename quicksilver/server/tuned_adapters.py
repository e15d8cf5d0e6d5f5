"""TunedAdapters: the tuned models of each project as adapters that requests can name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quicksilver.adapters import AdapterRef
from quicksilver.server.adapters import ServedAdapter
from quicksilver.server.storage import Storage
from quicksilver.tuning.models import ADAPTERS, PREFIX, TunedModel, adapter_file, adapter_path, find_model, list_models


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
