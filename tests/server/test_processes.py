"""Two server processes on one database: what is revoked in one is revoked in both, and no log holds a secret."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import AdminService, open_admin
from tests.server.conftest import chat
from tests.server.paid_server import PaidServer

CHAT = "/v1/chat/completions"
REVOKED_WITHIN_S = 1.0
NUM_STREAMS = 8
CANARY = "CANARY"
INJECTIONS = (
    f"' OR 1=1; DROP TABLE purses; -- {CANARY}",
    f"${{jndi:ldap://{CANARY}}}",
    f"%s%n%x {CANARY}",
    f"{{0.__class__}} {CANARY}",
    f"\x1b[31m{CANARY}\x1b[0m",
    f'","level":"error","event":"{CANARY}',
    f"{CANARY}\tline\x85two",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PaidServer, PaidServer]]:
    home = tmp_path_factory.mktemp("home")
    first = PaidServer(home, home / "log").start()
    second = PaidServer(home, home / "log").start()
    yield first.wait_ready(), second.wait_ready()
    assert [first.stop(), second.stop()] == [0, 0]


@pytest.fixture
def admin(pair: tuple[PaidServer, PaidServer]) -> Iterator[AdminService]:
    admin = open_admin(pair[0].database, AccountsConfig(pepper_path=pair[0].home / "pepper"))
    yield admin
    admin.store.close()


def make_key(admin: AdminService) -> tuple[str, dict[str, str]]:
    org = admin.organizations.create_org(OPERATOR, "acme")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    key = admin.keys.create_key(OPERATOR, KeyDraft("key", project.id))
    return key.id, {"authorization": f"Bearer {key.secret}"}


def test_a_revoked_key_is_refused_everywhere_within_a_second(
    pair: tuple[PaidServer, PaidServer], admin: AdminService
) -> None:
    key_id, bearer = make_key(admin)
    for server in pair:
        assert httpx.get(f"{server.url}/v1/models", headers=bearer).status_code == 200
    admin.organizations.disable(OPERATOR, key_id)
    for server in pair:
        assert httpx.post(server.url + CHAT, json=chat(), headers=bearer).status_code == 401, "paid work stops at once"
    time.sleep(REVOKED_WITHIN_S)
    for server in pair:
        assert httpx.get(f"{server.url}/v1/models", headers=bearer).status_code == 401


def read_stream(server: PaidServer, bearer: dict[str, str]) -> str:
    return httpx.post(server.url + CHAT, json=chat("slowly", stream=True), headers=bearer, timeout=60).text


def test_open_streams_of_a_revoked_key_are_cut_and_settled(
    pair: tuple[PaidServer, PaidServer], admin: AdminService
) -> None:
    key_id, bearer = make_key(admin)
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        reading = [pool.submit(read_stream, pair[number % 2], bearer) for number in range(NUM_STREAMS)]
        while admin.organizations.get_account(OPERATOR, key_id).in_flight < NUM_STREAMS:
            time.sleep(0.01)
        admin.organizations.disable(OPERATOR, key_id)
        texts = [one.result() for one in reading]
    assert all("[DONE]" not in text for text in texts)
    assert all("invalid_api_key" in text or text.count("data: ") == 0 for text in texts)
    while admin.organizations.get_account(
        OPERATOR, key_id
    ).in_flight:  # closed just after the last byte; else a timeout
        time.sleep(0.01)
    account = admin.organizations.get_account(OPERATOR, key_id)
    assert account.reserved == 0
    assert account.spent > 0


def raw(server: PaidServer, *headers: str, body: str = "{}") -> None:
    lines = (f"POST {CHAT} HTTP/1.1", "host: localhost", *headers, f"content-length: {len(body)}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall("\r\n".join([*lines, "connection: close", "", body]).encode("latin-1"))
        while link.recv(65536):
            pass


def test_no_log_line_and_no_metric_holds_a_key_a_prompt_or_what_a_header_said(
    pair: tuple[PaidServer, PaidServer], admin: AdminService
) -> None:
    server = pair[0]
    _, bearer = make_key(admin)
    secret = bearer["authorization"].split()[1]
    names = ("authorization", "idempotency-key", "user-agent", "origin", "cookie", "referer", "x-request-id")
    for name in (*names, "x-stainless-retry-count", "x-forwarded-for", "content-type", "traceparent", "accept"):
        for text in INJECTIONS:
            raw(server, f"{name}: {text}")
            raw(server, *([f"authorization: Bearer {secret}"] if name != "authorization" else []), f"{name}: {text}")
    with httpx.Client(base_url=server.url, headers=bearer) as client:
        for words in (f"{CANARY} at once", f"{CANARY} and die"):
            for stream in (False, True):
                client.post(CHAT, json=chat(words, stream=stream))
        client.post(CHAT, content=f'{{"model": "{CANARY}"'.encode())
        client.post(CHAT, json=chat(CANARY, temperature=CANARY))
        client.post(CHAT, json=chat(CANARY, model=CANARY))
        client.post(CHAT, json=chat(CANARY, response_format={"type": CANARY}))
        client.get(f"/{CANARY}?{CANARY}={CANARY}")
        client.post("/feedback", json={"request_id": CANARY, "user_action": "accept"})
        client.get(f"/v1/account/keys/{CANARY}")
    admin = admin.keys.bootstrap()
    assert admin is not None
    metrics = httpx.get(f"{server.admin_url}/metrics", headers={"authorization": f"Bearer {admin.secret}"}).text
    lines = server.log.read_text().splitlines()
    assert len(lines) > len(INJECTIONS)
    for text in (CANARY, secret, admin.secret, "DROP TABLE", "jndi"):
        assert not [line for line in lines if text in line]
        assert text not in metrics
    assert all(isinstance(json.loads(line), dict) for line in lines), "every line is one JSON object"
