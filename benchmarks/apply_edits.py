"""Apply-edit without a model: the share of cases that are byte-exact, by language and kind.

    python -m benchmarks.apply_edits [FOLDER] [--seeds 2] [--source OWNER/NAME@COMMIT ...] [--out benchmarks/results]

FOLDER has one folder of source files per language, named as in `editing/languages.py`. Without it, the files are a
sample of the source files of installed Python packages: Python, C++ headers and others. Up to eight cases are built
from each file and seed (`apply_cases.py`). A case counts as exact if the merge needs no model and equals the expected
file. Lost lines are counted in all cases; a span that is left to the model counts as unchanged. A line that is no longer in
its place counts as lost, even if the file has another copy of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apply_cases import Case, cases
from quicksilver.editing.apply import Copy, merge
from quicksilver.editing.line_diff import differences
from quicksilver.editing.outline import outline_of
from quicksilver.evals.report import machine_facts

# Files of about 1,000 lines, for which the time of a merge is reported by itself.
LONG_FILES = range(900, 1101)
# Of installed packages: files per language, and their lines. Longer lines are those of minified files.
NUM_INSTALLED, INSTALLED_LINES, MAX_LINE = 60, range(40, 1501), 300
LANGUAGE_OF = {
    ".py": "python", ".js": "javascript", ".ts": "typescript", ".tsx": "tsx", ".c": "c", ".h": "cpp", ".hpp": "cpp",
    ".cpp": "cpp", ".rs": "rust", ".go": "go", ".java": "java",
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Source:
    text: str
    language: str


def files_in(folder: Path) -> list[Source]:
    return [Source(path.read_text(), path.parent.name) for path in sorted(folder.glob("*/*")) if path.is_file()]


def installed_files(folder: Path) -> Iterator[Source]:
    """A sample of source files, which depends on their paths in the folder only."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.suffix in LANGUAGE_OF]
    found: Counter[str] = Counter()
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.as_posix().encode()).digest()):
        language = LANGUAGE_OF[path.suffix]
        if found[language] < NUM_INSTALLED and (text := read_source(folder / path)):
            found[language] += 1
            yield Source(text, language)


def read_source(path: Path) -> str:
    """The text of a file; empty if it is very short, long or not written by hand."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    lines = text.split("\n")
    return text if len(lines) in INSTALLED_LINES and max(map(len, lines)) <= MAX_LINE else ""


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
    parser.add_argument("folder", type=Path, nargs="?", help="default: files of installed Python packages")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--source", action="append", default=[], help="where the files are from, for the report")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    files = files_in(args.folder) if args.folder else list(installed_files(Path(sysconfig.get_path("purelib"))))
    outcomes = list(run_files(files, args.seeds))
    rows, measured = table(outcomes), times(outcomes)
    sources = args.source if args.folder else ["installed Python packages"]
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
