"""A batch whose server is killed several times: every line is answered once and charged once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import AdminService, open_admin
from tests.server.conftest import chat
from tests.server.endpoints.batches.test_route import BATCHES, CHAT
from tests.server.paid_server import PaidServer

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
