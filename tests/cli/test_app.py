"""The list of commands: version, help, errors, and no import of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from quicksilver import __version__
from quicksilver.cli.app import COMMANDS, GROUPS, app
from tests.support.command import quicksilver
from tests.support.weights import MODEL

MAIN = "from quicksilver.cli import main; main()"


def test_version_and_help() -> None:
    assert quicksilver("version").stdout.strip() == __version__
    assert quicksilver("--version").stdout.strip() == __version__
    shown = quicksilver("--help").stdout
    for verb in ("generate", "chat", "serve", "pull", "inspect", "bench", "doctor"):
        assert verb in shown


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "quicksilver", "version"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == __version__


def test_errors_are_one_line_with_the_next_step(tmp_path: Path) -> None:
    missing = quicksilver("generate", "x", "--model", MODEL, home=tmp_path)
    assert missing.returncode == 2
    assert f"quicksilver pull {MODEL}" in missing.stderr
    assert "Traceback" not in missing.stderr
    unknown = quicksilver("inspect", "nanno", home=tmp_path)
    assert unknown.returncode == 2
    assert "Did you mean" in unknown.stderr


def test_the_command_line_itself_does_not_import_torch() -> None:
    code = "import sys; from quicksilver.cli.app import app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_imports_no_command() -> None:
    code = """
import sys
from quicksilver.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"torch", "numpy", "fastapi", "sqlalchemy", "tokenizers", "quicksilver.cli.serve"} & set(sys.modules)
sys.exit(", ".join(sorted(heavy)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_collector_visits_no_object_at_exit() -> None:
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); " + MAIN
    done = subprocess.run([sys.executable, "-c", code, "version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True"


def test_the_listed_help_is_that_of_the_commands() -> None:
    group: Any = get_command(app)
    for command in (*COMMANDS, *GROUPS):
        assert group.commands[command.name].help.startswith(command.help), command.name


def test_an_unknown_command_suggests_a_known_one() -> None:
    refused = quicksilver("serv")
    assert refused.returncode == 2
    assert "serve" in refused.stderr


def test_square_brackets_of_an_error_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "server[" / "b].toml"
    path.parent.mkdir()
    path.write_text("[limits]\nmax_opn = 1\n")
    refused = quicksilver("serve", "--config", str(path))
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert f"{path}: unknown setting 'max_opn' in [limits]; did you mean max_open?" in refused.stderr


def test_a_long_error_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200) / "server.toml"
    refused = quicksilver("serve", "--config", str(path))
    assert refused.returncode == 2
    assert str(path) in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
