"""Adapters that a request can name: a reference to their files, and the interface of an engine that loads them.

Standard library only, as in `core`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """A LoRA adapter: where its files are, and their hash. `hub.adapter_files.find_adapter` makes it."""

    # SHA-256 of the files, in hex. It identifies the weights: KV pages and loaded adapters are keyed by it.
    id: str
    # An adapter file, or a folder in PEFT's layout; empty for a stack.
    path: str
    # Of a stack: the adapters that are applied together, in this order.
    parts: tuple[AdapterRef, ...] = ()


def stacked(first: AdapterRef, second: AdapterRef) -> AdapterRef:
    """Both adapters as one: `second` was trained on the model with `first`. Its id is the hash of both ids."""
    parts = tuple(part for ref in (first, second) for part in (ref.parts or (ref,)))
    digest = hashlib.sha256("\0".join(part.id for part in parts).encode()).hexdigest()
    return AdapterRef(digest, "", parts)


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter in the memory of an engine."""

    id: str
    path: str
    # The largest rank of its matrices, after projections that the network fuses were joined.
    rank: int
    num_bytes: int
    # Whether a request uses it now.
    is_in_use: bool = False


@runtime_checkable
class AdapterHost(Protocol):
    """An engine client whose engine computes requests with adapters. An adapter that a request names is loaded on
    demand, so none of these calls is needed before a request."""

    async def load_adapter(self, adapter: AdapterRef) -> AdapterInfo:
        """Reads and checks the files, and keeps the adapter in memory. Raises CheckpointRefused with the reason if it
        does not fit the model, and EngineUnavailable if all memory for adapters is in use."""

    async def unload_adapter(self, adapter_id: str) -> bool:
        """Frees the memory of an adapter that no request uses. False if it is in use or not in memory."""

    async def list_adapters(self) -> tuple[AdapterInfo, ...]:
        """The adapters in memory, least recently used first."""
