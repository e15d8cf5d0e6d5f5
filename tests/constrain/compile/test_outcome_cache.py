"""The outcome cache is bounded in bytes, for each tenant and in total."""

from __future__ import annotations

from quicksilver.constrain.compile.outcome_cache import OVERHEAD_BYTES, OutcomeCache, size_of
from quicksilver.constrain.compile.worker import Outcome

SMALL = Outcome(grammar="g" * 100)
SIZE = size_of(SMALL)


def digest(number: int) -> bytes:
    return number.to_bytes(2, "big")


def test_the_least_recently_used_outcome_is_evicted_first() -> None:
    cache = OutcomeCache(tenant_bytes=2 * SIZE, total_bytes=100 * SIZE)
    cache.put("t", digest(1), SMALL)
    cache.put("t", digest(2), SMALL)
    assert cache.get("t", digest(1)) is SMALL
    cache.put("t", digest(3), SMALL)
    assert [cache.get("t", digest(i)) is SMALL for i in (1, 2, 3)] == [True, False, True]
    assert cache.num_bytes == 2 * SIZE


def test_tenants_neither_read_nor_evict_entries_of_each_other() -> None:
    cache = OutcomeCache(tenant_bytes=2 * SIZE, total_bytes=100 * SIZE)
    cache.put("a", digest(1), SMALL)
    for i in range(50):
        cache.put("b", digest(i), SMALL)
    assert cache.get("a", digest(1)) is SMALL
    assert cache.get("a", digest(49)) is None


def test_over_the_total_bound_the_least_recently_used_tenant_is_evicted() -> None:
    cache = OutcomeCache(tenant_bytes=SIZE, total_bytes=2 * SIZE)
    for tenant in ("a", "b"):
        cache.put(tenant, digest(1), SMALL)
    cache.get("a", digest(1))
    cache.put("c", digest(1), SMALL)
    assert [cache.get(tenant, digest(1)) is SMALL for tenant in "abc"] == [True, False, True]
    assert cache.num_bytes <= 2 * SIZE


def test_many_unique_sources_take_no_more_than_the_bound() -> None:
    cache = OutcomeCache(tenant_bytes=10 * SIZE, total_bytes=30 * SIZE)
    for i in range(5000):
        cache.put(f"tenant {i % 7}", digest(i), SMALL)
        assert cache.num_bytes <= 30 * SIZE


def test_an_outcome_beyond_the_bound_is_not_kept() -> None:
    cache = OutcomeCache(tenant_bytes=SIZE, total_bytes=100 * SIZE)
    cache.put("t", digest(1), Outcome(grammar="g" * (SIZE + 1)))
    assert cache.num_bytes == 0
    assert size_of(Outcome(error="x")) == OVERHEAD_BYTES + 1


def test_the_same_outcome_twice_counts_once() -> None:
    cache = OutcomeCache(tenant_bytes=5 * SIZE, total_bytes=5 * SIZE)
    cache.put("t", digest(1), SMALL)
    cache.put("t", digest(1), SMALL)
    assert cache.num_bytes == SIZE
