"""The list of commands: version, help, errors, and no import of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quicksilver import __version__
from tests.support.command import quicksilver
from tests.support.weights import MODEL


def test_version_and_help() -> None:
    assert quicksilver("version").stdout.strip() == __version__
    shown = quicksilver("--help").stdout
    for verb in ("generate", "chat", "serve", "pull", "inspect", "bench", "doctor"):
        assert verb in shown


def test_errors_are_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    missing = quicksilver("generate", "x", "--model", MODEL, home=tmp_path)
    assert missing.returncode == 2
    assert f"quicksilver pull {MODEL}" in missing.stderr
    assert "Traceback" not in missing.stderr
    unknown = quicksilver("inspect", "nanno", home=tmp_path)
    assert unknown.returncode == 2
    assert "Did you mean" in unknown.stderr


def test_the_command_line_itself_does_not_import_torch() -> None:
    code = "import sys, quicksilver.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
