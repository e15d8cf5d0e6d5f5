"""Probes."""

from __future__ import annotations

from tests.server.conftest import Served


async def test_health_is_about_this_process_and_ready_about_the_engine(served: Served) -> None:
    assert (await served.get("/ready")).json() == {"status": "ready", "model": "nano", "running": 0, "waiting": 0}
    served.engine.is_ready = False
    assert (await served.get("/health")).json() == {"status": "ok"}
    response = await served.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "starting")
