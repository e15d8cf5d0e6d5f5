"""Two processes on one database never exceed budgets or rate limits."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Identity
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import Limits, Order
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.core import Usage
from quicksilver.errors import InsufficientQuota, RateLimited
from tests.accounts.conftest import START, make_customer

# In each of the two processes.
NUM_PARALLEL = 100


def frozen_clock() -> float:
    return START


async def race(url: str, config: AccountsConfig, identity: Identity, name: str) -> int:
    """Send all requests at once, settle the admitted; returns how many were."""
    accounts = await Accounts.open(url, config, frozen_clock)

    async def one(number: int) -> int:
        request_id = f"{identity.key_id}-{name}-{number}"
        try:
            await accounts.reserve(identity, Order(request_id, "nano", 10, 20))
        except (InsufficientQuota, RateLimited):
            return 0
        await accounts.settle(request_id, Usage(10, 0, 20))
        return 1

    admitted = await asyncio.gather(*(one(number) for number in range(NUM_PARALLEL)))
    await accounts.close()
    return sum(admitted)


def run_races(barrier: Barrier, results: Any, name: str, works: list[tuple[str, AccountsConfig, Identity]]) -> None:
    for number, work in enumerate(works):
        barrier.wait(60)
        results.put((number, asyncio.run(race(*work, name))))


def race_in_two_processes(works: list[tuple[str, AccountsConfig, Identity]]) -> Counter[int]:
    """How many requests each work had admitted, over both processes."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2), spawn.SimpleQueue()
    processes = [spawn.Process(target=run_races, args=(barrier, results, name, works)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0]
    admitted: Counter[int] = Counter()
    while not results.empty():
        number, count = results.get()
        admitted[number] += count
    return admitted


def test_two_processes_share_budgets_and_rate_limits_exactly(
    admin: AdminService, url: str, config: AccountsConfig
) -> None:
    poor, slow = make_customer(admin), make_customer(admin)
    admin.organizations.set_budget(OPERATOR, poor.key_id, 10 * 2100)
    admin.organizations.set_limits(OPERATOR, slow.key_id, Limits(requests=37))
    patient = replace(config, lock_wait_s=20.0, heartbeat_s=1.0, patience=60)
    admitted = race_in_two_processes([(url, patient, poor.identity), (url, patient, slow.identity)])
    assert 9 <= admitted[0] <= 10
    assert admitted[1] == 37
    assert admin.organizations.get_account(OPERATOR, poor.key_id).spent == admitted[0] * 2100
    assert audit(admin.store) == []
