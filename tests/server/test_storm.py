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
NUM_REQUESTS, NUM_KILLS, NUM_PIECES = 500, 6, 2


@pytest.mark.timeout(600)
def test_the_ledger_of_killed_servers_agrees_with_the_clients() -> None:
    sizes = ["--requests", str(NUM_REQUESTS), "--kills", str(NUM_KILLS), "--pieces", str(NUM_PIECES)]
    command = [sys.executable, "-m", "benchmarks.http_faults", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert set(report["wrong"].values()) == {0}, report
    assert report["findings"] == []
    assert report["log_leaks"] == 0
    assert report["faults"]["kill"] == NUM_KILLS * NUM_PIECES
    assert report["requests"] >= NUM_REQUESTS * NUM_PIECES
    assert report["delivered"] > NUM_REQUESTS * NUM_PIECES / 3
    assert [piece["settings"]["seed"] for piece in report["pieces"]] == [1, 2]
    assert report["replayed"] > 0
    assert set(report["exit_codes"]) == {"0"}
    assert report["states"]["settled by sweep"] + report["states"]["released by sweep"] > 0
