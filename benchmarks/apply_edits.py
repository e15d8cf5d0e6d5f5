"""Apply-edit without a model: the share of cases that are byte-exact, by language and kind.

    python -m benchmarks.apply_edits FOLDER [--seeds 2] [--out benchmarks/results]

FOLDER has one folder of source files per language, named as in `editing/languages.py`. Six cases are built from each
file and seed (`apply_cases.py`). A case counts as exact if the merge needs no model and equals the expected file.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import Counter
from pathlib import Path

from benchmarks.apply_cases import Case, cases
from quicksilver.editing.apply import Copy, merge
from quicksilver.evals.report import machine_facts


def lost_lines(case: Case, result: str) -> int:
    """Lines of the file that the expected result keeps and the merge lost."""
    missing = Counter(case.expected.split("\n")) - Counter(result.split("\n"))
    known = set(case.original.split("\n"))
    return sum(count for line, count in missing.items() if line.strip() and line in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    totals, exact, without_model, lost, seconds = Counter[str](), Counter[str](), Counter[str](), 0, list[float]()
    for path in sorted(path for path in args.folder.glob("*/*") if path.is_file()):
        for seed in range(args.seeds):
            for case in cases(path.read_text(), path.parent.name, seed):
                started = time.perf_counter()
                pieces = merge(case.original, case.update)
                seconds.append(time.perf_counter() - started)
                result = "".join(piece.text for piece in pieces if isinstance(piece, Copy))
                is_settled = all(isinstance(piece, Copy) for piece in pieces)
                lost += lost_lines(case, result) if is_settled else 0
                for key in (case.language, case.kind, "all"):
                    totals[key] += 1
                    without_model[key] += is_settled
                    exact[key] += is_settled and result == case.expected
    rows = {
        key: {"cases": n, "exact": exact[key] / n, "without_model": without_model[key] / n}
        for key, n in sorted(totals.items())
    }
    times = {"p50_ms": 1e3 * statistics.median(seconds), "max_ms": 1e3 * max(seconds)}
    report = {**machine_facts(), "cpu": platform.processor(), "rows": rows, "lost_lines": lost, "time": times}
    for key, row in rows.items():
        print(f"{key:12} {row['cases']:6} cases, {row['exact']:.1%} exact, {row['without_model']:.1%} without a model")
    print(f"lines lost: {lost}; merge p50 {times['p50_ms']:.1f} ms")
    args.out.mkdir(exist_ok=True)
    (args.out / f"apply_edits-{time.strftime('%Y%m%d-%H%M%S')}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
