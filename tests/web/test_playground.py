"""The playground in a real Chromium: the end-to-end tests of `web/e2e`, and the component tests of `web/test`.

`make test` installs what they need where there is Node 20: an installed Chromium is used, else the one that comes as an
npm package. What is missing makes them skip with a message that names it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "web"
SCENES = ("chat", "conversations", "code", "panels", "accounts", "hostile", "quality")


def missing() -> str | None:
    if shutil.which("node") is None:
        return "the playground's tests need Node 20"
    if not (WEB / "node_modules" / ".package-lock.json").is_file():
        return "the playground's tests need their packages: `make browser`"
    return None


def complaint_of(*arguments: str, **environment: str) -> str:
    """The output of a failed Node command, or an empty string."""
    finished = subprocess.run(
        ["node", *arguments], cwd=WEB, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return "" if finished.returncode == 0 else finished.stdout[-8000:] + finished.stderr[-2000:]


@pytest.fixture(autouse=True)
def _tools() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES)
def test_scene_plays_in_chromium(scene: str) -> None:
    if reason := complaint_of("e2e/chromium.mjs"):
        pytest.skip(f"no Chromium starts here: {reason}")
    complaint = complaint_of("--test", f"e2e/{scene}.test.mjs", PYTHON=sys.executable)
    assert not complaint, complaint


@pytest.mark.timeout(120)
def test_components_behave() -> None:
    complaint = complaint_of("node_modules/vitest/vitest.mjs", "run")
    assert not complaint, complaint


@pytest.mark.timeout(120)
def test_source_has_no_type_errors() -> None:
    complaint = complaint_of("node_modules/typescript/bin/tsc", "--noEmit")
    assert not complaint, complaint
