"""Probes."""

from __future__ import annotations

import pytest

from quicksilver.core import EngineStats
from tests.server.conftest import Served


async def test_health_is_about_this_process_and_ready_about_the_engine(served: Served) -> None:
    assert (await served.get("/ready")).json() == {"status": "ready", "model": "nano", "running": 0, "waiting": 0}
    served.engine.is_ready = False
    assert (await served.get("/health")).json() == {"status": "ok"}
    response = await served.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "starting")


async def test_a_draining_server_counts_the_requests_that_still_run(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stats() -> EngineStats:
        return EngineStats(running=2)

    monkeypatch.setattr(served.engine, "stats", stats)
    served.services.open_requests.is_draining = True
    response = await served.get("/ready")
    assert (response.status_code, response.json()["status"], response.json()["running"]) == (503, "draining", 2)
