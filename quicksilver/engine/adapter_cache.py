"""AdapterCache: the row adapters in memory, loaded on demand within a limit of bytes, least recently used out first.

An adapter is in use as long as a `Lease` on it exists, and is then not evicted. Every method may be called from any
thread. Only `lease` can take long: it reads and converts an adapter that is not in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

from quicksilver.adapters import AdapterInfo, AdapterRef
from quicksilver.backends.base import AdapterStore, Backend
from quicksilver.errors import CheckpointRefused, EngineUnavailable, QuicksilverError
from quicksilver.hub.adapter_files import find_adapter
from quicksilver.model.adapters import Adapter, stack_adapters
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.adapter_file import load_adapter
from quicksilver.model.files.peft import load_peft
from quicksilver.model.row_adapters import RowAdapter, check_row_adapter

log = logging.getLogger(__name__)

# Adapters that were refused and are not read again.
MAX_REFUSED = 256

# Converts the adapter of a reference for the backend; raises CheckpointRefused.
LoadAdapter = Callable[[AdapterRef], RowAdapter]
FileStates = tuple[tuple[int, int], ...]


class Lease:
    """One use of an adapter. It ends when the object is freed."""

    __slots__ = ("__weakref__", "adapter")

    def __init__(self, adapter: RowAdapter) -> None:
        self.adapter = adapter


@dataclass(slots=True)
class _Entry:
    ref: AdapterRef
    adapter: RowAdapter
    leases: WeakSet[Lease] = field(default_factory=WeakSet)

    @property
    def info(self) -> AdapterInfo:
        adapter = self.adapter
        return AdapterInfo(self.ref.id, self.ref.path, adapter.rank, adapter.num_bytes, len(self.leases) > 0)


class AdapterCache:
    def __init__(self, load: LoadAdapter, max_bytes: int, store: AdapterStore | None = None) -> None:
        """`store`: the device's own memory for adapters, whose size then counts instead of `max_bytes`."""
        self._load, self._store = load, store
        self._max_bytes = max_bytes if store is None else store.num_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        # The reason of each refusal, by the hash of the adapter and the state of its files.
        self._refused: OrderedDict[tuple[str, FileStates], str] = OrderedDict()
        # `_lock` is held briefly. `_loading` is held while an adapter is read: one at a time, and each once.
        self._lock, self._loading = threading.Lock(), threading.Lock()

    def __contains__(self, ref: AdapterRef) -> bool:
        return ref.id in self._entries

    def lease(self, ref: AdapterRef) -> Lease:
        """Loads the adapter if it is not in memory. Raises CheckpointRefused if it cannot be used, and
        EngineUnavailable if the adapters in use leave no room for it."""
        if (found := self._find(ref)) is not None:
            return found
        key = (ref.id, file_states(ref))
        self._check_refused(key)
        with self._loading:
            if (found := self._find(ref)) is not None:
                return found
            self._check_refused(key)
            started = time.monotonic()
            try:
                lease = self._add(ref)
            except CheckpointRefused as error:
                self._note_refused(key, error.message)
                raise
        log.info("loaded adapter %s in %.1f s", ref.id[:12], time.monotonic() - started)
        return lease

    def _add(self, ref: AdapterRef) -> Lease:
        adapter = self._load(ref)
        with self._lock:
            self._make_room(adapter.num_bytes)
        if self._store is not None:
            self._store.place(adapter)
        with self._lock:
            entry = self._entries[ref.id] = _Entry(ref, adapter)
            return _lease(entry)

    def _drop(self, adapter_id: str) -> None:
        entry = self._entries.pop(adapter_id)
        if self._store is not None:
            self._store.drop(entry.adapter)

    def _check_refused(self, key: tuple[str, FileStates]) -> None:
        """A refused adapter is read again only after its files have changed, so requests for it do not delay others."""
        with self._lock:
            if (reason := self._refused.get(key)) is not None:
                raise CheckpointRefused(reason)

    def _note_refused(self, key: tuple[str, FileStates], reason: str) -> None:
        with self._lock:
            self._refused[key] = reason
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)

    def info(self, ref: AdapterRef) -> AdapterInfo:
        """Loads the adapter if it is not in memory."""
        adapter = self.lease(ref).adapter
        with self._lock:
            entry = self._entries.get(ref.id) or _Entry(ref, adapter)
            return entry.info

    def unload(self, adapter_id: str) -> bool:
        """False if the adapter is in use or not in memory."""
        with self._lock:
            entry = self._entries.get(adapter_id)
            if entry is None or len(entry.leases):
                return False
            self._drop(adapter_id)
            return True

    def list(self) -> tuple[AdapterInfo, ...]:
        """Least recently used first."""
        with self._lock:
            return tuple(entry.info for entry in self._entries.values())

    @property
    def num_bytes(self) -> int:
        return sum(entry.adapter.num_bytes for entry in self._entries.values())

    def _find(self, ref: AdapterRef) -> Lease | None:
        with self._lock:
            entry = self._entries.get(ref.id)
            if entry is None:
                return None
            self._entries.move_to_end(ref.id)
            return _lease(entry)

    def _make_room(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise CheckpointRefused(
                f"the adapter needs {num_bytes:,} bytes, and all adapters together may use {self._max_bytes:,}; "
                "raise adapter_bytes"
            )
        idle = [key for key, entry in self._entries.items() if not len(entry.leases)]
        while self.num_bytes + num_bytes > self._max_bytes:
            if not idle:
                raise EngineUnavailable("the adapters in use fill the memory for adapters; retry shortly")
            self._drop(idle.pop(0))


def file_states(ref: AdapterRef) -> FileStates:
    """Size and time of the last change of every file of the adapter; (-1, -1) for a missing one."""
    return tuple(_state(file) for part in ref.parts or (ref,) for file in _files(Path(part.path)))


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _lease(entry: _Entry) -> Lease:
    lease = Lease(entry.adapter)
    entry.leases.add(lease)
    return lease


def read_adapter(ref: AdapterRef, config: ModelConfig, base_sha256: str, backend: Backend) -> RowAdapter:
    """Reads an adapter, checks it against its hash and the model, and converts it for the backend. Raises
    CheckpointRefused, with a reason that names no folder of this machine."""
    parts = ref.parts or (ref,)
    try:
        adapters = [_read_part(part, config, base_sha256) for part in parts]
        if len(adapters) > 1:
            adapters = [stack_adapters(adapters)]
            check_row_adapter(config, adapters[0])
        return backend.convert_adapter(adapters[0])
    except QuicksilverError:
        raise
    except Exception as error:
        names = ", ".join(Path(part.path).name for part in parts)
        raise CheckpointRefused(f"adapter {names} cannot be read: {type(error).__name__}") from error


def _read_part(ref: AdapterRef, config: ModelConfig, base_sha256: str) -> Adapter:
    """One adapter, checked against its hash and the model."""
    path = Path(ref.path)
    if find_adapter(path).id != ref.id:
        raise CheckpointRefused(f"adapter {path.name}: its files were changed after the server had read them")
    adapter = load_peft(path, config) if path.is_dir() else load_adapter(path)
    trained_on = adapter.metadata.get("base_sha256", "")
    if trained_on and base_sha256 and trained_on != base_sha256:
        raise CheckpointRefused(f"adapter {path.name}: it was trained on another base file ({trained_on[:12]}…)")
    check_row_adapter(config, adapter)
    return adapter
