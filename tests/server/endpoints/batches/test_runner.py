"""Batches that are interrupted: every line is answered once and charged once, and no owner waits for another."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import KeyDraft, Limits, StoredObject
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.core import Request
from quicksilver.errors import LedgerUnavailable
from quicksilver.server.endpoints.batches import lines, runner
from tests.server.conftest import HELLO, Served, chat, says
from tests.server.endpoints.batches.test_route import BATCHES, CHAT, create, line, owner_of, rows, wait_for
from tests.server.paid_server import PaidServer
from tests.support.bank import Bank
from tests.support.fake_engine import Step

# The figures of the documentation are those of 1,000 lines and 5 kills.
NUM_LINES = int(os.environ.get("QUICKSILVER_BATCH_LINES", "60"))
NUM_KILLS = int(os.environ.get("QUICKSILVER_BATCH_KILLS", "2"))
# Half of the default price of a token, input or output, in micro-credits.
HALF_PRICE = 500_000


def start(server: PaidServer) -> PaidServer:
    return server.start().wait_ready()


def make_key(admin: AdminService) -> tuple[str, dict[str, str]]:
    org = admin.organizations.create_org(OPERATOR, "org", 10_000_000)
    project = admin.organizations.create_project(OPERATOR, org.id, "project")
    secret = admin.keys.create_key(OPERATOR, KeyDraft("key", project.id)).secret
    return org.id, {"authorization": f"Bearer {secret}"}


def create_batch(client: httpx.Client) -> str:
    bodies = [chat(f"{i}", max_tokens=8, temperature=0) for i in range(NUM_LINES)]
    rows = [{"custom_id": f"line-{i}", "method": "POST", "url": CHAT, "body": body} for i, body in enumerate(bodies)]
    files = {"file": ("in.jsonl", b"\n".join(map(orjson.dumps, rows)))}
    file = client.post("/v1/files", files=files, data={"purpose": "batch"}).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    return str(client.post(BATCHES, json=body).json()["id"])


def wait_for_lines(client: httpx.Client, batch: str, num_lines: int) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        reply: dict[str, Any] = client.get(f"{BATCHES}/{batch}").json()
        if reply["request_counts"]["completed"] >= num_lines and (num_lines < NUM_LINES or reply["output_file_id"]):
            return reply
        time.sleep(0.02)
    raise AssertionError(f"the batch does not go on: {reply}")


@pytest.mark.timeout(600)
def test_a_killed_batch_is_answered_and_charged_once(tmp_path: Path) -> None:
    server = PaidServer(tmp_path, tmp_path / "log", program="tests.server.endpoints.batches.batch_server")
    admin = open_admin(server.database, AccountsConfig(pepper_path=tmp_path / "pepper"))
    org_id, headers = make_key(admin)
    start(server)
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        batch = create_batch(client)
        for number in range(1, NUM_KILLS + 1):
            wait_for_lines(client, batch, number * NUM_LINES // (NUM_KILLS + 1))
            server.kill()
            start(server)
        done = wait_for_lines(client, batch, NUM_LINES)
        content = client.get(f"/v1/files/{done['output_file_id']}/content").content
    rows = [orjson.loads(row) for row in content.splitlines()]
    assert done["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    assert sorted(row["custom_id"] for row in rows) == sorted(f"line-{i}" for i in range(NUM_LINES))
    num_tokens = sum(row["response"]["body"]["usage"]["total_tokens"] for row in rows)
    account = admin.organizations.get_account(OPERATOR, org_id)
    assert (account.spent, account.reserved) == (num_tokens * HALF_PRICE, 0)
    assert audit(admin.store) == []
    admin.store.close()
    assert server.stop() == 0


class HeldEngine:
    """An engine whose answers stop after their first piece until `go_on` is set."""

    def __init__(self, served: Served) -> None:
        self.go_on = asyncio.Event()
        self._served = served
        served.engine.script = self._script

    def _script(self, request: Request) -> list[Step]:
        first, *rest = says(HELLO)(request)
        return [first, self.go_on.wait, *rest]

    async def wait_for_line(self) -> None:
        await until(lambda: self._served.engine.num_open > 0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def price_of_a_line(served: Served, bank: Bank, headers: dict[str, str]) -> int:
    await served.post(CHAT, chat("0"), headers)
    return (await bank.spent() + 1) // 2


async def test_a_store_that_fails_for_a_moment_interrupts_no_line(
    served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RENEW_S", 0.01)
    headers = await bank.key()
    price = await price_of_a_line(served, bank, headers)
    spent = await bank.spent()
    failures: list[int] = []
    renew, add = ObjectStore.renew, ObjectStore.add

    def failing_renew(self: ObjectStore, *given: Any) -> bool:
        failures.append(1)
        if len(failures) <= 3:
            raise LedgerUnavailable("try again")
        return renew(self, *given)

    def failing_add(self: ObjectStore, owner: str, stored: StoredObject) -> bool:
        failures.append(1)
        if failures.count(1) % 2:
            raise LedgerUnavailable("try again")
        return add(self, owner, stored)

    engine = HeldEngine(served)
    monkeypatch.setattr(ObjectStore, "renew", failing_renew)
    monkeypatch.setattr(ObjectStore, "add", failing_add)
    served.engine.seen.clear()
    made = await create(served, [line(0)], headers)
    await engine.wait_for_line()
    await until(lambda: len(failures) > 6)
    engine.go_on.set()
    done = await wait_for(served, made, "completed", headers=headers)
    assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert len(served.engine.seen) == 1
    assert await bank.spent() == spent + price


async def test_a_line_whose_lease_is_lost_is_charged_once(
    served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RENEW_S", 0.01)
    headers = await bank.key()
    price = await price_of_a_line(served, bank, headers)
    spent, storage, owner = await bank.spent(), served.services.storage, await owner_of(served, headers)
    engine = HeldEngine(served)
    made = await create(served, [line(0)], headers)
    await engine.wait_for_line()
    held = await storage.get(owner, "batch", made["id"])
    stolen = replace(held, leased_by="another", leased_until=int(time.time()) + 3600)
    await storage.put(owner, stolen)
    await until(lambda: served.engine.num_open == 0)
    await until(lambda: served.app.state.batches._task.done())
    assert await bank.spent() == spent
    assert await storage.get(owner, "batch", made["id"]) == stolen
    engine.go_on.set()
    await storage.put(owner, replace(stolen, leased_until=1))
    served.app.state.batches.start()
    await wait_for(served, made, "completed", headers=headers)
    assert await bank.spent() == spent + price


async def test_what_ends_after_the_lease_is_lost_is_not_written(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, engine = served.services.storage, HeldEngine(served)
    monkeypatch.setattr(runner, "RENEW_S", 3600.0)
    made = await create(served, [line(0)])
    await engine.wait_for_line()
    held = await storage.get("", "batch", made["id"])
    stolen = replace(held, leased_by="another", leased_until=int(time.time()) + 3600)
    await storage.put("", stolen)
    engine.go_on.set()
    await until(lambda: served.app.state.batches._task.done())
    assert await storage.get("", "batch", made["id"]) == stolen


async def test_a_store_that_fails_does_not_fail_the_batch(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEASE_S", -1)
    read, failures = runner.read_content, [LedgerUnavailable("try again")]

    async def failing(*given: Any) -> bytes:
        if failures:
            raise failures.pop()
        return await read(*given)

    monkeypatch.setattr(runner, "read_content", failing)
    made = await create(served, [line(0)])
    assert (await wait_for(served, made, "completed", "failed"))["status"] == "completed"


async def test_an_owner_at_its_limit_delays_no_other(
    served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FIRST_PAUSE_S", 3600.0)
    limited = await bank.key(limits=Limits(requests=1))
    slow = await create(served, [line(i) for i in range(3)], limited)
    await until(lambda: len(served.engine.seen) == 1)
    other = await bank.key()
    quick = await create(served, [line(0)], other)
    await wait_for(served, quick, "completed", headers=other)
    assert (await served.get(f"{BATCHES}/{slow['id']}", limited)).json()["status"] == "in_progress"
    async with served.client() as client:
        await client.post(f"{BATCHES}/{slow['id']}/cancel", headers=limited)
    await wait_for(served, slow, "cancelled", headers=limited)


async def test_a_line_without_credit_is_final_in_every_dialect(served: Served, bank: Bank) -> None:
    headers = await bank.key(credits=0)
    body = {**chat("0"), "max_tokens": 8}
    row = {"custom_id": "m", "method": "POST", "url": "/v1/messages", "body": body}
    made = await create(served, [row], headers, endpoint="/v1/messages")
    done = await wait_for(served, made, "completed", headers=headers)
    (failed,) = await rows(served, done["error_file_id"], headers)
    assert failed["response"]["status_code"] == 429
    assert failed["response"]["body"]["error"]["type"] == "billing_error"


async def test_results_count_against_the_quota(served: Served) -> None:
    served.configure(batch_lines=1)
    made = await create(served, [line(i) for i in range(4)])
    await wait_for(served, made, "completed")
    kept = await served.services.storage.run(lambda store: store.num_bytes(""))
    served.configure(stored_bytes=kept + 2500)
    done = await wait_for(served, await create(served, [line(i) for i in range(4)]), "completed")
    assert done["request_counts"]["failed"] > 0
    for row in await rows(served, done["error_file_id"]):
        assert row["response"]["body"]["error"]["code"] == "quota_exceeded"
    assert len(served.engine.seen) == 4 + done["request_counts"]["completed"]


async def test_result_files_expire_when_the_batch_says_so(served: Served) -> None:
    made = await create(served, [line(0)], output_expires_after={"anchor": "created_at", "seconds": 3600})
    done = await wait_for(served, made, "completed")
    file = (await served.get(f"/v1/files/{done['output_file_id']}")).json()
    assert file["expires_at"] == pytest.approx(file["created_at"] + 3600, abs=5)
