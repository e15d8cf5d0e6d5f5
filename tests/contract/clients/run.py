"""Third-party clients against a live server with real weights: `make clients`.

They are installed under `.build/clients`, separately for Python and Node, at the versions of the two lock files beside
this file. One server handles all clients, one after the other. Arguments are passed to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.live import free_port, serving

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / ".build" / "clients"
PYTHON = BUILD / "venv" / "bin" / "python"
NODE = BUILD / "node"
MIN_NODE = 20


def main(arguments: list[str]) -> int:
    BUILD.mkdir(parents=True, exist_ok=True)
    has_node = node_version() >= MIN_NODE
    install_python()
    if has_node:
        install_node()
    admin_port = free_port()
    with serving(BUILD / "server.log", "--admin-port", str(admin_port)) as url:
        addresses = {"QUICKSILVER_URL": url, "QUICKSILVER_ADMIN_URL": f"http://127.0.0.1:{admin_port}"}
        environment = {**os.environ, **addresses}
        failed = run_python(arguments, environment)
        if not has_node:
            print(f"Node {MIN_NODE} or newer, with npm, is not installed: the Node clients were NOT run")
            return failed
        return run_node(environment) or failed


def node_version() -> int:
    """The major version of Node, or 0 if Node or npm is not installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return 0
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.strip().removeprefix("v").split(".")[0])


def install_python() -> None:
    if is_fresh(BUILD / "venv", HERE / "requirements.lock"):
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(BUILD / "venv")], check=True)
    quiet = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    wanted = ["--require-hashes", "--requirement", str(HERE / "requirements.lock")]
    subprocess.run([str(PYTHON), "-m", "pip", "install", *quiet, *wanted], check=True)
    shutil.copy(HERE / "requirements.lock", BUILD / "venv")


def install_node() -> None:
    if not is_fresh(NODE / "node_modules", HERE / "package-lock.json"):
        NODE.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, NODE)
        subprocess.run(["npm", "ci", "--loglevel=error", "--no-audit", "--no-fund"], cwd=NODE, check=True)
        shutil.copy(HERE / "package-lock.json", NODE / "node_modules")


def is_fresh(folder: Path, lock: Path) -> bool:
    """Whether the folder was installed from the current lock file."""
    made_of = folder / lock.name
    return made_of.exists() and made_of.read_bytes() == lock.read_bytes()


def run_python(arguments: list[str], environment: dict[str, str]) -> int:
    command = [str(PYTHON), "-m", "pytest", "-q", "-c", str(HERE / "clients.ini"), *(arguments or [str(HERE)])]
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


def run_node(environment: dict[str, str]) -> int:
    # Modules are looked for beside the file that imports them.
    shutil.copy(HERE / "clients.test.mjs", NODE)
    return subprocess.run(["node", "--test", "clients.test.mjs"], cwd=NODE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
