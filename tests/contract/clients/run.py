"""Third-party clients against a live server with real weights: `make clients`.

They are installed under `.build/clients`, separately for Python and Node, at the versions of the lock files beside this
file. One server handles all clients, one after the other. The clients in `frameworks` (`--frameworks`,
`make frameworks`) have an environment of their own, because their pins conflict with the others; aider and guidellm,
which run as programs, have one each. Other arguments are passed to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.live import free_port, serving

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / ".build" / "clients"
FRAMEWORKS = HERE / "frameworks"
NODE = BUILD / "node"
AGENTS = BUILD / "agents"
AGENT_PACKAGES = HERE.parent / "agents" / "package.json"
MIN_NODE = 20


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--frameworks"]:
        return run_frameworks(arguments[1:])
    install_clients()
    has_node, admin_port = node_version() >= MIN_NODE, free_port()
    with serving(BUILD / "server.log", "--admin-port", str(admin_port)) as url:
        addresses = {"QUICKSILVER_URL": url, "QUICKSILVER_ADMIN_URL": f"http://127.0.0.1:{admin_port}"}
        # Tests of agent programs start a server of their own, with this interpreter.
        programs = {"QUICKSILVER_PYTHON": sys.executable, "QUICKSILVER_AGENTS": str(AGENTS) if has_node else ""}
        environment = {**os.environ, **addresses, **programs}
        failed = run_python(BUILD / "venv", arguments or [str(HERE)], environment)
        if not has_node:
            print(f"Node {MIN_NODE} or newer, with npm, is not installed: the Node clients were NOT run")
            return failed
        return run_node(environment) or failed


def install_clients() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    install_python(BUILD / "venv", HERE / "requirements.lock")
    if node_version() >= MIN_NODE:
        install_node()
        install_agents()


def install_frameworks() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    install_python(BUILD / "frameworks", FRAMEWORKS / "requirements.lock")
    install_python(BUILD / "aider", FRAMEWORKS / "aider.lock")
    install_python(BUILD / "guidellm", FRAMEWORKS / "guidellm.lock")
    lend_packages(BUILD / "guidellm")


def run_frameworks(arguments: list[str]) -> int:
    install_frameworks()
    admin_port = free_port()
    with serving(BUILD / "frameworks.log", "--admin-port", str(admin_port)) as url:
        addresses = {"QUICKSILVER_URL": url, "QUICKSILVER_ADMIN_URL": f"http://127.0.0.1:{admin_port}"}
        programs = {"QUICKSILVER_PYTHON": sys.executable, "QUICKSILVER_PROGRAMS": str(BUILD)}
        environment = {**os.environ, **addresses, **programs, "QUICKSILVER_FRAMEWORKS": "1"}
        return run_python(BUILD / "frameworks", arguments or [str(FRAMEWORKS)], environment)


def node_version() -> int:
    """The major version of Node, or 0 if Node or npm is not installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return 0
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.strip().removeprefix("v").split(".")[0])


def install_python(folder: Path, lock: Path) -> None:
    if is_fresh(folder, lock):
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    quiet = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    # The lock file is complete. With dependencies, pip refuses an extra that another package asks for.
    wanted = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *wanted], check=True)
    shutil.copy(lock, folder)


def lend_packages(folder: Path) -> None:
    """Packages that an environment lacks are found in that of the project: the lock files leave out torch."""
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (folder / site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def install_node() -> None:
    if not is_fresh(NODE / "node_modules", HERE / "package-lock.json"):
        NODE.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, NODE)
        subprocess.run(["npm", "ci", "--loglevel=error", "--no-audit", "--no-fund"], cwd=NODE, check=True)
        shutil.copy(HERE / "package-lock.json", NODE / "node_modules")


def install_agents() -> None:
    if not is_fresh(AGENTS / "node_modules", AGENT_PACKAGES):
        AGENTS.mkdir(exist_ok=True)
        shutil.copy(AGENT_PACKAGES, AGENTS)
        options = ["--no-package-lock", "--loglevel=error", "--no-audit", "--no-fund"]
        subprocess.run(["npm", "install", *options], cwd=AGENTS, check=True)
        shutil.copy(AGENT_PACKAGES, AGENTS / "node_modules")


def is_fresh(folder: Path, lock: Path) -> bool:
    """Whether the folder was installed from the current lock file."""
    made_of = folder / lock.name
    return made_of.exists() and made_of.read_bytes() == lock.read_bytes()


def run_python(folder: Path, paths: list[str], environment: dict[str, str]) -> int:
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-c", str(HERE / "clients.ini"), *paths]
    return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode


def run_node(environment: dict[str, str]) -> int:
    # Modules are looked for beside the file that imports them.
    shutil.copy(HERE / "clients.test.mjs", NODE)
    return subprocess.run(["node", "--test", "clients.test.mjs"], cwd=NODE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
