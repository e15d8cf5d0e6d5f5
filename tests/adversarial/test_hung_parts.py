"""Parts that stop without dying: the engine and the ledger. Probes must tell, and figures must stay readable."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.core import EngineStats
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.engine_probe import EngineProbe
from tests.server.conftest import Served


async def scrape(served: Served) -> str:
    app = build_admin_app(served.services)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        return (await client.get("/metrics")).text


@pytest.fixture
def hung(served: Served, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Ends the engine's silence when it is set; counts nothing, so that a leak of questions is seen."""
    go = asyncio.Event()
    answer = served.engine.stats

    async def stats() -> EngineStats:
        await go.wait()
        return await answer()

    monkeypatch.setattr(served.engine, "stats", stats)
    served.services.__dict__["engine_probe"] = EngineProbe(served.engine, 0.05)
    return go


async def test_ready_is_503_while_the_engine_does_not_answer(served: Served, hung: asyncio.Event) -> None:
    response = await asyncio.wait_for(served.get("/ready"), 10)
    assert (response.status_code, response.json()["status"]) == (503, "engine_stalled")
    assert response.headers["retry-after"] == "1"
    hung.set()
    assert (await served.get("/ready")).status_code == 200


async def test_metrics_answer_while_the_engine_does_not(served: Served, hung: asyncio.Event) -> None:
    hung.set()
    assert "quicksilver_engine_up 1.0" in await scrape(served)
    hung.clear()
    text = await asyncio.wait_for(scrape(served), 10)
    assert "quicksilver_engine_up 0.0" in text
    assert "quicksilver_engine_stats_age_seconds" in text
    assert "quicksilver_num_requests_running 0.0" in text, "the last figures are still there"
    hung.set()


async def test_probes_of_a_hung_engine_do_not_pile_up(served: Served, hung: asyncio.Event) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(5):
        await served.get("/ready")
    assert len(asyncio.all_tasks()) <= before + 1
    hung.set()
    await served.get("/ready")


async def test_ready_is_503_while_the_ledger_cannot_be_written(served: Served, tmp_path: Path) -> None:
    database = tmp_path / "ledger.db"
    config = AccountsConfig(pepper_path=tmp_path / "pepper", heartbeat_s=0.05, lock_wait_s=0.05)
    accounts = await Accounts.open(f"sqlite:///{database}", config)
    try:
        served.rebuild(served.services.config, accounts)
        assert (await served.get("/ready")).status_code == 200
        blocker = sqlite3.connect(database, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        assert await becomes(served, 503) == "ledger_unavailable"
        blocker.execute("ROLLBACK")
        blocker.close()
        assert await becomes(served, 200) == "ready"
    finally:
        await accounts.close()


async def becomes(served: Served, status: int) -> str:
    deadline = time.monotonic() + 30
    while (response := await served.get("/ready")).status_code != status:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return str(response.json()["status"])
