"""Outcomes of recent compilations, in memory only: least recently used first out, bounded in bytes for each tenant.

One tenant cannot see, or push out, what another has compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from quicksilver.constrain.compile.worker import Outcome

OVERHEAD_BYTES = 256
"""What an entry costs beside its texts."""


@dataclass(slots=True)
class _Shelf:
    """The outcomes of one tenant."""

    outcomes: OrderedDict[bytes, Outcome] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class OutcomeCache:
    """Outcomes by tenant and digest of the source."""

    def __init__(self, tenant_bytes: int, total_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._total_bytes = total_bytes
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()
        self.num_bytes = 0

    def get(self, tenant: str, digest: bytes) -> Outcome | None:
        shelf = self._shelves.get(tenant)
        if shelf is None or digest not in shelf.outcomes:
            return None
        self._shelves.move_to_end(tenant)
        shelf.outcomes.move_to_end(digest)
        return shelf.outcomes[digest]

    def put(self, tenant: str, digest: bytes, outcome: Outcome) -> None:
        if size_of(outcome) > self._tenant_bytes or self.get(tenant, digest) is not None:
            return
        shelf = self._shelves.setdefault(tenant, _Shelf())
        self._shelves.move_to_end(tenant)
        shelf.outcomes[digest] = outcome
        self._account(shelf, size_of(outcome))
        while shelf.num_bytes > self._tenant_bytes:
            self._drop_oldest(shelf)
        while self.num_bytes > self._total_bytes:
            self._drop_tenant()

    def _drop_oldest(self, shelf: _Shelf) -> None:
        _, outcome = shelf.outcomes.popitem(last=False)
        self._account(shelf, -size_of(outcome))

    def _drop_tenant(self) -> None:
        _, shelf = self._shelves.popitem(last=False)
        self.num_bytes -= shelf.num_bytes

    def _account(self, shelf: _Shelf, num_bytes: int) -> None:
        shelf.num_bytes += num_bytes
        self.num_bytes += num_bytes


def size_of(outcome: Outcome) -> int:
    return OVERHEAD_BYTES + len(outcome.grammar.encode()) + len(outcome.error.encode())
