"""Every other client against a live server: `python tests/contract/clients/run.py`, or `make clients`.

Makes `.venv-clients` and `node_modules` here when they are missing, starts the server with a scripted engine, runs the
Python clients and then the Node ones. Extra arguments go to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
VENV = ROOT / ".venv-clients"


def main(arguments: list[str]) -> int:
    install()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "tests.contract.live", home]
        server = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            environment = {**os.environ, "QUICKSILVER_URL": server.stdout.readline().strip()}
            return run_python(arguments, environment) or run_node(environment)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(20)


def install() -> None:
    if not (VENV / ".done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        wanted = ["--quiet", "--no-compile", "--requirement", str(HERE / "requirements.txt")]
        subprocess.run([str(VENV / "bin" / "python"), "-m", "pip", "install", *wanted], check=True)
        (VENV / ".done").touch()
    if shutil.which("npm") and not (HERE / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=HERE, check=True)


def run_python(arguments: list[str], environment: dict[str, str]) -> int:
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "-c",
        str(HERE / "clients.ini"),
        str(HERE),
        *arguments,
    ]
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


def run_node(environment: dict[str, str]) -> int:
    if shutil.which("node") is None:
        print("node is not installed: the Node clients were not run")
        return 0
    return subprocess.run(["node", "--test", "clients.test.mjs"], cwd=HERE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
