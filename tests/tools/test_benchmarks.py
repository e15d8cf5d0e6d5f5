"""Every module of benchmarks/ can be imported. Packages that only a GPU or a peer needs may be missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN = ("quicksilver", "benchmarks", "tests")
PROGRAM = """
import importlib, json, sys
faults = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        faults[name] = ["missing", error.name]
    except Exception as error:
        faults[name] = [type(error).__name__, str(error)]
print(json.dumps(faults))
"""


def test_every_benchmark_can_be_imported() -> None:
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
    assert len(names) > 50
    command = [sys.executable, "-c", PROGRAM, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    faults = json.loads(done.stdout.splitlines()[-1])
    broken = {
        name: fault for name, fault in faults.items() if fault[0] != "missing" or str(fault[1]).partition(".")[0] in OWN
    }
    assert not broken
