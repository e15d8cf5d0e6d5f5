"""One task by a real model through an agent program; prints what happened as JSON.

    unshare --map-root-user --net python -m tests.contract.agents.real_run AGENT WORKSPACE PROGRAM --model coder-1.5b

The server and the program share a network namespace with loopback only. The task is to create hello.py that prints the
first ten primes; the script runs the file afterwards. Takes minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.agents.programs import AGENTS
from tests.contract.agents.world import Job, bring_up_loopback, run_program
from tests.support.live import serving

TASK = "create hello.py that prints the first ten primes"
PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]


def numbers_of(text: str) -> list[int]:
    words = "".join(c if c.isdigit() else " " for c in text).split()
    return [int(word) for word in words]


def run_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"file": None, "printed": "", "is_right": False}
    done = subprocess.run(
        [sys.executable, "-I", str(path)], capture_output=True, text=True, timeout=30, check=False, cwd=path.parent
    )
    return {"file": path.read_text(), "printed": done.stdout, "is_right": numbers_of(done.stdout) == PRIMES}


def read_log(log: Path) -> list[dict[str, Any]]:
    """Routes, statuses and milliseconds of the requests."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [{key: line[key] for key in ("route", "status", "ms")} for line in lines if line.get("event") == "request"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("workspace", type=Path)
    parser.add_argument("program")
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--context-len", type=int, default=16384)
    parser.add_argument("--limit", type=float, default=900, help="seconds for the program")
    parser.add_argument("--task", default=TASK)
    options = parser.parse_args(arguments)
    bring_up_loopback()
    workspace = options.workspace.resolve()
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "server.log"
        settings = Path(home) / "server.toml"
        settings.write_text("[limits]\ntemperature = 0.0\n")
        flags = ["--no-companion", "--context-len", str(options.context_len), "--config", str(settings)]
        with serving(log, *flags, "--log-format", "json", model=options.model) as url:
            job = Job(url, workspace, options.model, options.task, "hello.py", options.context_len, "whole")
            started = time.monotonic()
            done = run_program(AGENTS[options.agent], options.program, job, Path(home), options.limit)
            seconds = round(time.monotonic() - started, 1)
        told = {"exit": done.returncode, "seconds": seconds, "requests": read_log(log)}
    told |= run_file(workspace / "hello.py") | {"output": (done.stdout + done.stderr)[-8000:]}
    print(json.dumps(told, indent=1))
    return 0 if told["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
