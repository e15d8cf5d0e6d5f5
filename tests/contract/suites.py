"""Third-party clients, frameworks and OpenAI's own API tests against live servers.

    python -m tests.contract.suites [frameworks] [clients] [openai] [--install]

Without names all three run. `make test` leaves out the frameworks, which take 1.3 GB to install; CI runs them too. Two
suites run at a time, because each waits for its server for much of its time. The output of a suite is printed when it
ends; meanwhile it is in `.build/suites`. The exit code is 0 if all of them pass. `--install` only installs their
environments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.contract.clients import run as clients
from tests.contract.openai_suite import run as openai_suite

ROOT = Path(__file__).parents[2]
LOGS = ROOT / ".build" / "suites"
# The longest first.
SUITES = {
    "frameworks": ("tests.contract.clients.run", "--frameworks"),
    "clients": ("tests.contract.clients.run",),
    "openai": ("tests.contract.openai_suite.run",),
}
INSTALL = {
    "frameworks": clients.install_frameworks,
    "clients": clients.install_clients,
    "openai": openai_suite.install,
}
AT_A_TIME = 2


def run_suite(name: str) -> tuple[str, int, float]:
    """The name, the exit code and the seconds of one suite."""
    began = time.monotonic()
    with (LOGS / f"{name}.log").open("w") as log:
        command = [sys.executable, "-m", *SUITES[name]]
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    return name, done.returncode, time.monotonic() - began


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=", ".join(SUITES))
    parser.add_argument("--install", action="store_true", help="install the environments and run nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; the suites are {', '.join(SUITES)}")
    names = [name for name in SUITES if name in (options.suites or SUITES)]
    if options.install:
        for name in names:
            INSTALL[name]()
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"suites: {', '.join(names)}; output so far is in {LOGS.relative_to(ROOT)}", flush=True)
    failed = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for suite in as_completed([pool.submit(run_suite, name) for name in names]):
            name, code, seconds = suite.result()
            print(f"== {name}: {'passed' if code == 0 else 'FAILED'} in {seconds:.0f} s", flush=True)
            print((LOGS / f"{name}.log").read_text(), flush=True)
            failed += [name] if code else []
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
