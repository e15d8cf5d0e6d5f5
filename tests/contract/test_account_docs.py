"""Runs every example in docs/guides/accounts.md against a live server with accounts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import open_admin
from tests.contract.test_api_docs import json_values
from tests.server.paid_server import PaidServer

DOCUMENT = (Path(__file__).parents[2] / "docs" / "guides" / "accounts.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidServer]:
    home = tmp_path_factory.mktemp("home")
    server = PaidServer(home, home / "log").start().wait_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def environment(server: PaidServer) -> dict[str, str]:
    admin = open_admin(server.database, AccountsConfig(pepper_path=server.home / "pepper"))
    first = admin.keys.bootstrap()
    assert first is not None
    org = admin.organizations.create_org(OPERATOR, "acme")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    scopes = frozenset({Scope.INFERENCE, Scope.USAGE, Scope.KEYS})
    key = admin.keys.create_key(OPERATOR, KeyDraft("laptop", project.id, scopes))
    admin.store.close()
    known = {"ADMIN_KEY": first.secret, "ORG": org.id, "PROJECT": project.id, "KEY": key.secret}
    return {**os.environ, "URL": server.url, "ADMIN_URL": server.admin_url, **known}


@pytest.mark.parametrize("number", range(len(SHELL)))
def test_shell_examples(environment: dict[str, str], number: int) -> None:
    example = SHELL[number]
    command = ["bash", "-euc", example]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    replies = list(json_values(done.stdout))
    assert len(replies) == example.count("curl ")
    assert all("error" not in reply for reply in replies), json.dumps(replies)


def test_every_account_route_is_written_down() -> None:
    for path in ("organizations", "projects", "api_keys", "users", "admin_api_keys", "limits", "budgets", "prices"):
        assert f"/{path}" in DOCUMENT
    assert len(SHELL) >= 6
