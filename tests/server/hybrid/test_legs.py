"""Legs: what the ledger row of a target names, and how its request waits for the engine."""

from __future__ import annotations

import pytest

from tests.server.conftest import chat
from tests.server.hybrid.conftest import HybridServed, legs_of, rows_of
from tests.support.bank import Bank


@pytest.mark.parametrize("base", ["nano", None])
async def test_an_adapter_is_charged_and_permitted_as_its_base(
    hybrid: HybridServed, bank: Bank, base: str | None
) -> None:
    key = await bank.key(models=frozenset({base or "coder"}))
    hybrid.coder_base = base
    await hybrid.apply(rules=[{"name": "code", "to": ["coder"]}])
    reply = await hybrid.served.post("/v1/chat/completions", chat(model="auto"), key)
    assert legs_of(reply.json()) == [("coder", "answered")]
    (row,) = await rows_of(bank)
    assert (row.model, row.state) == (base or "coder", "settled")


async def test_the_headers_on_waiting_count(hybrid: HybridServed) -> None:
    async def ask(**headers: str) -> int:
        named = {f"x-quicksilver-{name.replace('_', '-')}": value for name, value in headers.items()}
        return (await hybrid.served.post("/v1/chat/completions", chat(model="auto"), named)).status_code

    assert [await ask(), await ask(start_within="7"), await ask(priority="batch")] == [200, 200, 200]
    seen = [(request.is_batch, request.start_within_s) for request in hybrid.served.engine.seen]
    assert seen == [(False, hybrid.served.services.config.start_within_s), (False, 7.0), (True, 0.0)]
    assert await ask(priority="first") == 400
