"""`quicksilver serve --accounts` with real weights, the printed admin key and the command line."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from openai import AuthenticationError, OpenAI, RateLimitError

from tests.support.live import free_port, serving
from tests.support.weights import MODEL, nano

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

PRINTED = re.compile(r"admin key, shown once: (qs-[\w-]{43})")


def test_an_operator_starts_a_server_and_lets_a_team_in(tmp_path: Path) -> None:
    nano()
    database, admin_port, log = f"sqlite:///{tmp_path}/books.db", free_port(), tmp_path / "log"
    flags = ("--accounts", "--database-url", database, "--admin-port", str(admin_port), "--signup-credits", "5000")
    with serving(log, *flags) as url:
        (admin,) = PRINTED.findall(log.read_text())
        secret = let_in(f"http://127.0.0.1:{admin_port}", admin)
        talk(url, secret)
        cut_a_stream(url, secret)
        assert own_account(url, secret, 0)["granted"] == "5000"
    assert quicksilver("db", "check", "--database-url", database).strip() == "the ledger is consistent"
    said = log.read_text()
    assert secret not in said
    assert "capital of France" not in said


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def let_in(admin_url: str, admin: str) -> str:
    """Create an organisation and a key through the admin listener."""
    with httpx.Client(base_url=admin_url, headers=bearer(admin)) as client:
        org = client.post("/v1/organizations", json={"name": "acme"}).json()
        (project,) = client.get("/v1/organization/projects", params={"organization_id": org["id"]}).json()["data"]
        made = client.post(f"/v1/organization/projects/{project['id']}/api_keys", json={"name": "team"}).json()
        assert httpx.get(f"{admin_url}/v1/organizations", headers=bearer(made["value"])).status_code == 403
        assert httpx.get(f"{admin_url}/metrics").status_code == 401
        assert client.get("/metrics").status_code == 200
    return str(made["value"])


def talk(url: str, secret: str) -> None:
    """Expected replies: 401, a charged answer, 429 over budget, and a replayed answer."""
    with pytest.raises(AuthenticationError):
        OpenAI(base_url=f"{url}/v1", api_key="qs-wrong", max_retries=0).models.list()
    client = OpenAI(base_url=f"{url}/v1", api_key=secret, max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    once = {"Idempotency-Key": "first"}
    replies = [
        client.chat.completions.create(model=MODEL, messages=question, max_tokens=8, extra_headers=once)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert replies[0].id == replies[1].id
    account = httpx.get(f"{url}/v1/account", headers=bearer(secret)).json()
    assert replies[0].usage is not None
    assert float(account["accounts"][0]["spent"]) <= replies[0].usage.total_tokens
    with pytest.raises(RateLimitError) as refused:
        client.chat.completions.create(model=MODEL, messages=question, max_tokens=6000)  # type: ignore[arg-type]
    assert refused.value.code == "insufficient_quota"


def cut_a_stream(url: str, secret: str) -> None:
    """A client disconnects: the tokens sent before are charged, and no more."""
    before = float(own_account(url, secret)["spent"])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count to one thousand."}], "max_tokens": 400}
    said, path = 0, f"{url}/v1/chat/completions"
    with httpx.stream("POST", path, json={**body, "stream": True}, headers=bearer(secret), timeout=120) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            said += '"content"' in line
            if said > 2:
                break
    while (account := own_account(url, secret))["in_flight"]:
        time.sleep(0.05)
    assert before < float(account["spent"]) < before + 400


def own_account(url: str, secret: str, place: int = -1) -> dict[str, str]:
    account: dict[str, str] = httpx.get(f"{url}/v1/account", headers=bearer(secret)).json()["accounts"][place]
    return account


def quicksilver(*args: str) -> str:
    command = [sys.executable, "-c", "from quicksilver.cli import main; main()", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout
