"""The checks of `soak.py`, and a few seconds of it with each fault once; the long run is `make soak`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.contract.soak import (
    Chaos,
    Client,
    Memory,
    Tally,
    close_ledger,
    ledger_faults,
    undisturbed,
)
from tests.contract.soak_server import Books, soaked_server
from tests.contract.worker_kills import Stream, make_key

pytestmark = pytest.mark.contract


@pytest.mark.timeout(300)
async def test_each_fault_once_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.contract.soak_server.find_binaries", lambda: None)
    monkeypatch.setattr("tests.contract.soak.NUM_BODIES", 4)
    monkeypatch.setattr("tests.contract.soak.OUTAGE_S", 1.0)
    books, tally = Books(tmp_path), Tally()
    async with soaked_server(tmp_path, books) as (replica, accounts):
        headers = {"authorization": f"Bearer {await accounts.admin(make_key)}"}
        async with httpx.AsyncClient(base_url=replica.server.url, headers=headers, timeout=120) as http:
            expected = await undisturbed(http)
            chaos = Chaos(replica, books, 0.0, 1)
            for kind in ("kill", "drain", "outage"):
                await chaos.inject(kind)
                for behave in ("normal", "abort"):
                    await Client(http, behave, expected, tally, 1).request(1)
        await close_ledger(accounts)
        faults = await accounts.admin(lambda admin: ledger_faults(admin, tally))
    assert tally.faults + faults == []
    assert tally.ends["complete"] == 3
    assert +chaos.done == {"kill": 1, "drain": 1, "outage": 1}


async def test_wrong_text_and_undeclared_ends_are_faults() -> None:
    tally = Tally()
    client = Client(httpx.AsyncClient(), "normal", [Stream("a", "text", usage={"completion_tokens": 1})], tally, 1)
    client._finish(0, Stream("b", "text", usage={"completion_tokens": 1}), [])
    assert tally.faults == []
    client._finish(0, Stream("c", "texttext", usage={"completion_tokens": 1}), [])
    client._check_end(Stream("d", "te"), 0)
    client._check_end(Stream("e", "te", error='{"code": "internal_error"}'), 0)
    client._check_end(Stream("f", "te", error='{"code": "engine_died"}'), 0)
    assert len(tally.faults) == 3
    assert (tally.ends["cut off"], tally.ends["engine_died"]) == (1, 1)


def test_memory_is_compared_after_the_warm_up() -> None:
    memory = Memory()
    memory.samples = [2**20 * size for size in (10, 50, 90, *[100] * 5, *[107] * 4)]
    assert memory.summary() == {"after_warm_up_mb": 100, "end_mb": 107, "change_pct": 7.0}
