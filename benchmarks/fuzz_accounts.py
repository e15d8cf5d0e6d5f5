"""Fuzz the account routes of both listeners with schemathesis, every check on: the documents say what is served.

    python -m benchmarks.fuzz_accounts              about 20 cases an operation
    python -m benchmarks.fuzz_accounts --cases 200

Runs with keys of its own against a whole server with accounts. Exits with 1 when anything is found.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import open_admin
from tests.server.paid_server import PaidServer

# Only these routes of the main listener. The others have their own fuzzer.
OWN = ("/v1/account", "/v1/organization")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="fuzzed cases per operation")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = PaidServer(Path(folder), Path(folder, "log")).start().wait_ready()
        admin, tenant = make_keys(server)
        try:
            figures = [
                fuzz(server.admin_url, admin, Path(folder, "admin.json"), options),
                fuzz(server.url, tenant, Path(folder, "main.json"), options),
            ]
        finally:
            server.stop()
    print(json.dumps({"cases": sum(num for num, _ in figures), "exits": [code for _, code in figures]}))
    return max(code for _, code in figures)


def make_keys(server: PaidServer) -> tuple[str, str]:
    """The admin key, and a key with all rights below it."""
    admin = open_admin(server.database, AccountsConfig(pepper_path=server.home / "pepper"))
    first = admin.keys.bootstrap()
    assert first is not None
    project = admin.organizations.list_accounts(OPERATOR, "project")[0]
    scopes = frozenset(Scope) - {Scope.ADMIN}
    tenant = admin.keys.create_key(OPERATOR, KeyDraft("tenant", project.id, scopes))
    admin.store.close()
    return first.secret, tenant.secret


def fuzz(url: str, key: str, spec: Path, options: argparse.Namespace) -> tuple[int, int]:
    document = httpx.get(f"{url}/openapi.json").json()
    paths = {path: found for path, found in document["paths"].items() if path.startswith(OWN)}
    spec.write_text(json.dumps({**document, "paths": paths}))
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", str(spec), "--url", url, "--checks", "all",
        "--max-examples", str(options.cases), "--seed", str(options.seed), "--request-timeout", "10",
        "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--header", f"Authorization: Bearer {key}",
        # Some refusals cannot be said in JSON Schema: a cached price above the fresh one, a budget of an organisation.
        "--exclude-checks", "positive_data_acceptance",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=spec.parent, text=True, capture_output=True)
    print(done.stdout)
    found = re.search(r"(\d+) generated", done.stdout)
    return int(found[1]) if found else 0, int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
