"""A file of `serve` that is not TOML is refused before the server is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quicksilver.cli.config_file import check_syntax
from quicksilver.errors import InvalidRequest

PROGRAM = """
import sys
from quicksilver.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(end.code, *sorted(name for name in sys.modules if name.startswith("quicksilver.")))
"""


@pytest.mark.parametrize("form", ["flag", "sign", "variable"])
def test_a_file_with_a_fault_is_refused_before_the_server_is_imported(tmp_path: Path, form: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text("port = = 1")
    words = {"flag": ["--config", str(path)], "sign": [f"--config={path}"], "variable": []}[form]
    environment = {**os.environ, **({"QUICKSILVER_CONFIG": str(path)} if form == "variable" else {})}
    command = [sys.executable, "-c", PROGRAM, "serve", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    code, *modules = done.stdout.split()
    assert code == "2"
    assert f"cannot read {path}" in done.stderr.replace("\n", "")
    assert "quicksilver.errors" in modules
    assert not [name for name in modules if name.startswith(("quicksilver.server", "quicksilver.cli.serve"))]


def test_a_file_that_can_be_parsed_and_a_call_for_help_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUICKSILVER_CONFIG", raising=False)
    path = tmp_path / "server.toml"
    path.write_text("port = 1")
    check_syntax(["serve", "--config", str(path)])
    check_syntax(["serve"])
    check_syntax(["serve", "--help", "--config", "none.toml"])
    with pytest.raises(InvalidRequest, match=r"cannot read none\.toml"):
        check_syntax(["serve", "--config", "none.toml"])
