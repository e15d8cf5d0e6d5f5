"""Lines per room and lengths of functions: `python tools/size.py [--check]`; --check fails past a limit."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "quicksilver"
MAX_FILE, MAX_FUNCTION, MAX_MEDIAN = 400, 60, 12


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def main() -> int:
    rooms: dict[str, int] = defaultdict(int)
    lengths: list[tuple[int, str]] = []
    faults: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(PACKAGE.parent))
        num_lines = text.count("\n")
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += num_lines
        if num_lines > MAX_FILE:
            faults.append(f"{name}: {num_lines} lines, more than {MAX_FILE}")
        for node in functions(ast.parse(text)):
            lengths.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{name}:{node.lineno} {node.name}"))
    median = statistics.median(length for length, _ in lengths)
    faults += [
        f"{where}: {length} lines, more than {MAX_FUNCTION}" for length, where in lengths if length > MAX_FUNCTION
    ]
    if median >= MAX_MEDIAN:
        faults.append(f"the median function has {median} lines, not under {MAX_MEDIAN}")
    for room, count in sorted(rooms.items(), key=lambda pair: -pair[1]):
        print(f"{count:6}  {room}")
    p90 = sorted(length for length, _ in lengths)[int(0.9 * len(lengths))]
    longest = max(lengths)
    print(f"{sum(rooms.values()):6}  in all; {len(lengths)} functions, median {median:g}, p90 {p90}")
    print(f"        longest: {longest[0]} lines, {longest[1]}")
    for fault in faults:
        print("over:", fault)
    return bool(faults) and "--check" in sys.argv


if __name__ == "__main__":
    sys.exit(main())
