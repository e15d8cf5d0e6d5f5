"""Whole servers under fire over HTTP: `benchmarks/http_faults.py` in a size for every day.

The same books at full size, without HTTP, are in `tests/accounts/test_faults.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_REQUESTS, NUM_KILLS = 1000, 12


@pytest.mark.timeout(600)
def test_the_ledger_of_killed_servers_agrees_with_the_clients() -> None:
    sizes = ["--requests", str(NUM_REQUESTS), "--kills", str(NUM_KILLS)]
    command = [sys.executable, "-m", "benchmarks.http_faults", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    found = report["audit"]
    assert set(found["wrong"].values()) == {0}, found
    assert found["findings"] == []
    assert report["log_leaks"] == 0
    assert report["faults"]["kill"] == NUM_KILLS
    assert report["requests"] >= NUM_REQUESTS
    assert report["delivered"] > NUM_REQUESTS / 3
    assert report["replayed"] > 0
    assert set(report["exit_codes"]) == {"0"}
    assert found["states"]["settled by sweep"] + found["states"]["released by sweep"] > 0
