"""A short run of the fuzzer in `benchmarks/fuzz_api.py` against the live server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.contract


@pytest.mark.timeout(400)
def test_no_case_finds_a_fault() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz_api.py"), "--cases", "4"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1])["cases"] > 2000


def test_the_series_needs_the_document_of_openai() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz_api", "--series"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, "--series needs --openai" in run.stderr) == (2, True)
