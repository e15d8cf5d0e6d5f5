"""Apply-edit without a model: the share of cases that are byte-exact, by language and kind.

    python -m benchmarks.apply_edits [FOLDER] [--seeds 2] [--source OWNER/NAME@COMMIT ...] [--out benchmarks/results]

FOLDER has one folder of source files per language, named as in `editing/languages.py`. Without it, the files are a
sample of 15 public repositories (`apply_sources.py`). Up to eight cases are built from each file and seed
(`apply_cases.py`). A case counts as exact if the merge needs no model and equals the expected file. Lost lines are
counted in all cases; a span that is left to the model counts as unchanged. A line that is no longer in its place counts
as lost, even if the file has another copy of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apply_cases import Case, cases
from benchmarks.apply_sources import REPOSITORIES, Source, files_in, sample
from quicksilver.editing.apply import Copy, merge
from quicksilver.editing.line_diff import differences
from quicksilver.editing.outline import outline_of
from quicksilver.evals.report import machine_facts

# Files of about 1,000 lines, for which the time of a merge is reported by itself.
LONG_FILES = range(900, 1101)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    is_settled: bool
    is_exact: bool
    lost: int
    # Processor time. A merge uses one thread and waits for nothing.
    seconds: float


def run_case(case: Case) -> Outcome:
    outline_of.cache_clear()  # The cases of a file follow each other.
    started = time.process_time()
    parts = merge(case.original, case.update)
    seconds = time.process_time() - started
    result = "".join(part.text if isinstance(part, Copy) else part.original for part in parts)
    is_settled = all(isinstance(part, Copy) for part in parts)
    return Outcome(case, is_settled, is_settled and result == case.expected, num_lost(case, result), seconds)


def num_lost(case: Case, result: str) -> int:
    """Lines of the file that the expected result keeps and the merge lost or moved."""
    original, expected, merged = (text.split("\n") for text in (case.original, case.expected, result))
    kept = set(range(len(expected))).difference(_removed(expected, original))
    return sum(bool(expected[i].strip()) for i in _removed(expected, merged) if i in kept)


def _removed(old: Sequence[str], new: Sequence[str]) -> set[int]:
    """The numbers of the old lines that are not in the new ones, in order."""
    return {i for each in differences(old, new) for i in range(each.start, each.end)}


def run_files(files: Sequence[Source], seeds: int) -> Iterator[Outcome]:
    for file in files:
        for seed in range(seeds):
            yield from map(run_case, cases(file.text, file.language, seed))


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """The counts and shares of each language, of each kind and of all cases."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        case = outcome.case
        for key in (case.language, case.kind, "all", *(["files_with_errors"] if case.has_file_errors else [])):
            groups.setdefault(key, []).append(outcome)
    return {
        key: {
            "cases": len(group),
            "exact": sum(each.is_exact for each in group) / len(group),
            "without_model": sum(each.is_settled for each in group) / len(group),
            "lost_lines": sum(each.lost for each in group),
        }
        for key, group in sorted(groups.items())
    }


def times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    seconds = [each.seconds for each in outcomes]
    long = [each.seconds for each in outcomes if each.case.original.count("\n") in LONG_FILES]
    return {
        "p50_ms": 1e3 * statistics.median(seconds),
        "max_ms": 1e3 * max(seconds),
        "long_files_cases": len(long),
        "long_files_p50_ms": 1e3 * statistics.median(long) if long else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="default: files of public repositories")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--source", action="append", default=[], help="where the files are from, for the report")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    files = files_in(args.folder) if args.folder else sample()
    outcomes = list(run_files(files, args.seeds))
    rows, measured = table(outcomes), times(outcomes)
    sources = args.source if args.folder else list(REPOSITORIES)
    settings = {"seeds": args.seeds, "files": len(files), "sources": sources, "cores": os.cpu_count()}
    report = {**machine_facts(), "settings": settings, "rows": rows, "time": measured}
    for key, row in rows.items():
        shares = f"{row['exact']:.1%} exact, {row['without_model']:.1%} without a model"
        print(f"{key:12} {row['cases']:6} cases, {shares}, {row['lost_lines']} lines lost")
    print(f"merge p50 {measured['p50_ms']:.1f} ms; files of about 1,000 lines {measured['long_files_p50_ms']:.1f} ms")
    args.out.mkdir(exist_ok=True)
    (args.out / f"apply_edits-{time.strftime('%Y%m%d-%H%M%S')}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
