"""An in-memory LRU cache of compile outcomes, bounded in bytes for each tenant and over all tenants.

Entries are keyed by tenant: a tenant can neither read nor evict what another one has compiled, as long as the total
bound is not reached.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from quicksilver.constrain.compile.worker import Outcome

# Memory of an entry beside its texts.
OVERHEAD_BYTES = 256


@dataclass(slots=True)
class _TenantEntries:
    """The outcomes of one tenant."""

    by_digest: OrderedDict[bytes, Outcome] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class OutcomeCache:
    """Outcomes by tenant and digest of the source."""

    def __init__(self, tenant_bytes: int, total_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._total_bytes = total_bytes
        self._tenants: OrderedDict[str, _TenantEntries] = OrderedDict()
        self.num_bytes = 0

    def get(self, tenant: str, digest: bytes) -> Outcome | None:
        entries = self._tenants.get(tenant)
        if entries is None or digest not in entries.by_digest:
            return None
        self._tenants.move_to_end(tenant)
        entries.by_digest.move_to_end(digest)
        return entries.by_digest[digest]

    def put(self, tenant: str, digest: bytes, outcome: Outcome) -> None:
        if size_of(outcome) > self._tenant_bytes or self.get(tenant, digest) is not None:
            return
        entries = self._tenants.setdefault(tenant, _TenantEntries())
        self._tenants.move_to_end(tenant)
        entries.by_digest[digest] = outcome
        self._account(entries, size_of(outcome))
        while entries.num_bytes > self._tenant_bytes:
            self._drop_oldest(entries)
        while self.num_bytes > self._total_bytes:
            self._drop_tenant()

    def _drop_oldest(self, entries: _TenantEntries) -> None:
        _, outcome = entries.by_digest.popitem(last=False)
        self._account(entries, -size_of(outcome))

    def _drop_tenant(self) -> None:
        _, entries = self._tenants.popitem(last=False)
        self.num_bytes -= entries.num_bytes

    def _account(self, entries: _TenantEntries, num_bytes: int) -> None:
        entries.num_bytes += num_bytes
        self.num_bytes += num_bytes


def size_of(outcome: Outcome) -> int:
    return OVERHEAD_BYTES + len(outcome.grammar.encode()) + len(outcome.error.encode())
