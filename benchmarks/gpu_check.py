"""Every kernel and graph against its oracle on a GPU, without a test framework.

    python -m benchmarks.gpu_check --out DIR

Writes check.log into DIR and exits 1 if anything failed. The same checks run under pytest in
tests/backends/cuda/kernels and tests/gpu.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch

from benchmarks.gpu_setup import switch_whole
from tests.support import bias_checks, fp8_checks, graph_checks, kernel_checks, mask_checks, tree_checks
from tests.support import int4_checks as four_checks
from tests.support import linear_checks as project_checks

ROOMS = (kernel_checks, project_checks, graph_checks, tree_checks, bias_checks, mask_checks, fp8_checks, four_checks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="run checks whose name contains this")
    parser.add_argument("--whole", default="", help="how small networks run in one launch: gpu_setup.switch_whole")
    options = parser.parse_args()
    switch_whole(options.whole)
    lines, failed = [], 0
    for name, check in (pair for room in ROOMS for pair in room.gpu_checks()):
        if options.only not in name:
            continue
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                check()
            verdict = "ok"
        except Exception as error:
            failed += 1
            verdict = f"FAILED {type(error).__name__}: {str(error)[:600]}"
            traceback.print_exc(limit=-3)
        lines.append(f"{name}: {verdict} ({time.perf_counter() - start:.1f} s)")
        print(lines[-1], flush=True)
    lines.append(f"{len(lines) - failed} passed, {failed} failed on {torch.cuda.get_device_name()}")
    print(lines[-1])
    Path(options.out).mkdir(parents=True, exist_ok=True)
    (Path(options.out) / "check.log").write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
