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
from quicksilver.core import EngineHealth, EngineState, EngineStats
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.engine_probe import EngineProbe
from tests.server.conftest import Served


async def scrape(served: Served) -> str:
    app = build_admin_app(served.services)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        return (await client.get("/metrics")).text


LAST = EngineHealth(EngineState.UNRESPONSIVE, 7.0, stats=EngineStats(running=5))


@pytest.fixture
def hung(served: Served, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An engine whose worker is stopped; setting the event ends that."""
    go = asyncio.Event()
    answer, health = served.engine.stats, served.engine.health

    async def stats() -> EngineStats:
        await go.wait()
        return await answer()

    monkeypatch.setattr(served.engine, "stats", stats)
    monkeypatch.setattr(served.engine, "health", lambda: health() if go.is_set() else LAST)
    served.services.__dict__["engine_probe"] = EngineProbe(served.engine, 0.05)
    return go


async def test_ready_is_503_while_the_engine_does_not_answer(served: Served, hung: asyncio.Event) -> None:
    response = await asyncio.wait_for(served.get("/ready"), 10)
    assert (response.status_code, response.json()["status"]) == (503, "engine_unresponsive")
    assert response.headers["retry-after"] == "1"
    hung.set()
    assert (await served.get("/ready")).status_code == 200


async def test_metrics_answer_while_the_engine_does_not(served: Served, hung: asyncio.Event) -> None:
    hung.set()
    text = await scrape(served)
    assert 'quicksilver_engine_up{model="nano"} 1.0' in text
    assert 'quicksilver_engine_stats_age_seconds{model="nano"} 0.0' in text
    hung.clear()
    text = await asyncio.wait_for(scrape(served), 10)
    assert 'quicksilver_engine_up{model="nano"} 0.0' in text
    assert 'quicksilver_engine_stats_age_seconds{model="nano"} 7.0' in text
    assert 'quicksilver_num_requests_running{model="nano"} 5.0' in text
    hung.set()


async def test_scrapes_of_a_hung_engine_do_not_pile_up(served: Served, hung: asyncio.Event) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(5):
        await scrape(served)
    assert len(asyncio.all_tasks()) <= before + 1
    hung.set()
    await scrape(served)


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


async def test_ready_is_503_while_no_compile_process_answers(served: Served) -> None:
    served.grammars.is_ready = False
    response = await served.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "compiler_unavailable")
    served.grammars.is_ready = True
    assert (await served.get("/ready")).status_code == 200


async def becomes(served: Served, status: int) -> str:
    deadline = time.monotonic() + 30
    while (response := await served.get("/ready")).status_code != status:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return str(response.json()["status"])
