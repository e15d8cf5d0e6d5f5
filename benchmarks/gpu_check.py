"""Runs every check of kernels, graphs and rounds on a GPU, without a test framework.

    python -m benchmarks.gpu_check --out DIR [--only NAME] [--switches layer_fused=0]

Writes check.log into DIR and exits 1 if a check failed. The same checks run under pytest in tests/backends/cuda and
tests/gpu.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch

from benchmarks.gpu_setup import apply_switches
from tests.support import (
    adapter_checks,
    bias_checks,
    block_checks,
    fp8_checks,
    graph_checks,
    int4_checks,
    kernel_checks,
    linear_checks,
    mask_checks,
    slot_checks,
    sparse_checks,
    tree_checks,
    wide_round_checks,
)

MODULES = (
    kernel_checks, linear_checks, graph_checks, slot_checks, tree_checks, bias_checks, mask_checks, fp8_checks,
    int4_checks, sparse_checks, adapter_checks, block_checks, wide_round_checks,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="run checks whose name contains this")
    parser.add_argument("--switches", default="", help="see gpu_setup.apply_switches")
    options = parser.parse_args()
    apply_switches(options.switches)
    lines, failed = [], 0
    for name, check in (pair for module in MODULES for pair in module.gpu_checks()):
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
