"""Tests of refusals under `python -O`, which removes `assert`: no check of input may depend on one.

The asserts of test modules stay, since pytest rewrites them. pytest warns that the others do not, which is the purpose
of the run, so that one warning is not an error here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELECTED = (
    "tests/adversarial/test_json_bombs.py",
    "tests/adversarial/test_charging.py",
    "tests/adversarial/test_special_tokens.py",
    "tests/engine/test_admission.py",
    "tests/model/files",
    "tests/server/http",
    "tests/server/endpoints/chat",
)


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_refusals_do_not_depend_on_assert() -> None:
    # The lists of naughty strings repeat one check hundreds of times and take most of the time.
    options = ("-q", "-x", "-k", "not naughty", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning")
    command = [sys.executable, "-O", "-m", "pytest", *options, *SELECTED]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
