"""20,000 paid requests on SQLite and PostgreSQL while 120 server processes are killed.

`benchmarks/ledger_faults.py` injects the faults and compares the ledger with what clients received.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ledger_faults.py"
pytestmark = pytest.mark.timeout(900)


def storm(*args: object) -> dict[str, Any]:
    command = [sys.executable, SCRIPT, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parents[1])
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert set(report["drain_exit_codes"]) == {0}, done.stderr
    return report


def assert_books_are_right(report: dict[str, Any], num_requests: int, num_kills: int) -> None:
    found = report["audit"]
    wrong = {"lost": 0, "double": 0, "over_charged": 0, "under_charged": 0, "left_open": 0}
    assert found["wrong"] == wrong
    assert found["findings"] == []
    assert found["negative_balances"] == found["unseen_rows"] == 0
    assert report["requests"] >= num_requests
    assert report["faults"]["kill"] >= num_kills
    assert report["delivered"] > num_requests / 2
    assert found["states"]["settled by sweep"] > 0
    assert report["refused"]["LedgerUnavailable"] > 0


def test_sqlite_ledger_is_exact_after_kills_locks_and_a_full_disk() -> None:
    report = storm("--requests", 14_000, "--kills", 80)
    assert_books_are_right(report, 14_000, 80)
    assert all(report["faults"][name] >= 3 for name in ("lock_sqlite", "starve", "freeze"))


def test_postgres_ledger_is_exact_after_kills_locks_and_lost_connections(postgres_url: str, tmp_path: Path) -> None:
    report = storm("--requests", 6_000, "--kills", 40, "--url", postgres_url, "--pepper", tmp_path / "pepper")
    assert_books_are_right(report, 6_000, 40)
    assert all(report["faults"][name] >= 3 for name in ("lock_postgres", "cut_off", "freeze"))
