"""kill -9 of a PostgreSQL server under paid requests: what was acknowledged is charged, nothing stays reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft, Limits, Order, Price
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.core import Usage
from quicksilver.errors import LedgerUnavailable
from tests.accounts.postgres import PostgresServer, find_binaries

NUM_CLIENTS = 8
NUM_KILLS = 3
HANG_GUARD_S = 60.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    server = PostgresServer(binaries)
    server.start()
    yield server
    server.stop()
    server.remove()


class Clients:
    """Concurrent requests, each reserved, checkpointed and settled; records what the ledger acknowledged."""

    def __init__(self, accounts: Accounts, secret: str) -> None:
        self._accounts = accounts
        self._secret = secret
        self.settled: dict[str, int] = {}
        self.num_refused = 0
        self.is_over = False

    async def run(self, name: str) -> None:
        number = 0
        while not self.is_over:
            number += 1
            try:
                await self._request(f"{name}-{number}")
            except LedgerUnavailable:
                self.num_refused += 1
                await asyncio.sleep(0.05)

    async def _request(self, request_id: str) -> None:
        identity = await self._accounts.authenticate(self._secret)
        await self._accounts.reserve(identity, Order(request_id, "nano", 10, 20))
        await self._accounts.checkpoint(request_id, 5)
        self.settled[request_id] = (await self._accounts.settle(request_id, Usage(10, 0, 7))).cost


async def test_the_ledger_is_exact_after_the_database_server_is_killed(server: PostgresServer, tmp_path: Path) -> None:
    config = AccountsConfig(
        tmp_path / "pepper", default_price=Price(10, 1, 100), key_limits=Limits(), heartbeat_s=0.1, lock_wait_s=1.0
    )
    accounts = await Accounts.open(server.url, config)
    secret = await accounts.admin(make_key)
    clients = Clients(accounts, secret)
    running = [asyncio.create_task(clients.run(f"c{number}")) for number in range(NUM_CLIENTS)]
    for _ in range(NUM_KILLS):
        await more_settled(clients)
        await asyncio.to_thread(server.kill)
        refused = clients.num_refused
        async with asyncio.timeout(HANG_GUARD_S):
            while clients.num_refused == refused or accounts.is_writable:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
    await more_settled(clients)
    assert accounts.is_writable
    clients.is_over = True
    await asyncio.gather(*running)
    await accounts.close()
    await compare(server.url, config, clients)


async def more_settled(clients: Clients) -> None:
    """Waits for 20 more settled requests."""
    before = len(clients.settled)
    async with asyncio.timeout(HANG_GUARD_S):
        while len(clients.settled) < before + 20:
            await asyncio.sleep(0.01)


def make_key(admin: AdminService) -> str:
    org = admin.organizations.create_org(OPERATOR, "acme")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    return admin.keys.create_key(OPERATOR, KeyDraft("key", project.id)).secret


async def compare(url: str, config: AccountsConfig, clients: Clients) -> None:
    accounts = await Accounts.open(url, config)

    def read(admin: AdminService) -> tuple[dict[str, tuple[str, int]], list[str]]:
        with admin.store.read() as connection:
            rows = connection.execute(select(ledger)).all()
        return {row.request_id: (row.state, row.cost) for row in rows}, audit(admin.store)

    rows, findings = await accounts.admin(read)
    await accounts.close()
    assert findings == []
    assert {state for state, _ in rows.values()} <= {"settled", "released"}
    assert {request_id: rows[request_id] for request_id in clients.settled} == {
        request_id: ("settled", cost) for request_id, cost in clients.settled.items()
    }
    assert set(clients.settled.values()) == {800}
    # A request whose settlement was not acknowledged is charged for its checkpoint, its settlement, or nothing.
    others = {cost for request_id, (_, cost) in rows.items() if request_id not in clients.settled}
    assert others <= {0, 800, 10 * 1 + 5 * 100}
