"""Start-up of the command line: seconds of `--help` and of a short `generate`, each in a new process.

    python -m benchmarks.command_line [--repeats 5] [--out benchmarks/results]

Prints JSON: date, commit, load before the run, the median and the shortest wall-clock seconds, the median processor
seconds, and the ratio to a bare `python -c pass`. The wall-clock figures are meaningful on an idle machine only.
Targets on two idle cores: `--help` 0.5 s, `generate` of 12 tokens with nano 4 s. `--out` is the folder of the result.
The processes write bytecode into a temporary folder and read it from there, whatever the environment says, because a
process that compiles every module takes twice as long. The first run of each case is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quicksilver.evals.report import machine_facts

MAIN = "from quicksilver.cli import main; main()"
CASES = {
    "python": ["-c", "pass"],
    "help": ["-c", MAIN, "--help"],
    "version": ["-c", MAIN, "--version"],
    "keys help": ["-c", MAIN, "keys", "--help"],
    "generate 12 tokens": ["-c", MAIN, "generate", "--chat", "Why is the sky blue?", "--max-tokens", "12"],
}


def measure(arguments: list[str], bytecode: str) -> tuple[float, float]:
    """Wall-clock and processor seconds of one process. `bytecode` is the folder of the compiled modules."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def figures_of(arguments: list[str], repeats: int, bytecode: str) -> dict[str, float]:
    measure(arguments, bytecode)
    walls, cpus = zip(*(measure(arguments, bytecode) for _ in range(repeats)), strict=True)
    return {
        "wall_s": round(statistics.median(walls), 3),
        "least_wall_s": round(min(walls), 3),
        "cpu_s": round(statistics.median(cpus), 3),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    facts, load = machine_facts(), round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as bytecode:
        results = {name: figures_of(arguments, given.repeats, bytecode) for name, arguments in CASES.items()}
    bare = results["python"]["wall_s"]
    for figure in results.values():
        figure["ratio_to_python"] = round(figure["wall_s"] / bare, 1)
    settings = {"cores": os.cpu_count(), "load": load, "niceness": os.nice(0), "repeats": given.repeats}
    text = json.dumps({**facts, **settings, "results": results}, indent=1)
    print(text)
    if given.out:
        (given.out / f"command_line-{facts['date'][:10]}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
