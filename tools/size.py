"""Lines per package and lengths of functions: `python tools/size.py [--check]`; with --check a breach is an error.

A package over its budget is a question to its author: which lines can go, or why is the budget wrong? Raise a budget in
the commit that needs it, and say why in the commit's body.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "quicksilver"
# The total was 44,100 before model families, wire dialects, fine-tuning and the cluster were added; each has its budget
# below.
MAX_TOTAL, MAX_FILE, MAX_FUNCTION, MAX_MEDIAN = 80_750, 400, 60, 12
# Lines of Python per package of quicksilver/; the modules beside the packages (core, errors) count as one.
BUDGETS = {
    "accounts": 3_800,
    "backends": 13_900,
    "cli": 4_130,
    "cluster": 2_460,
    "constrain": 6_140,
    "diffusion": 1_620,
    "editing": 3_060,
    "engine": 3_120,
    "evals": 2_910,
    "hub": 720,
    "llm": 800,
    "model": 3_870,
    "server": 18_050,
    "text": 2_590,
    "training": 9_470,
    "tuning": 950,
    "worker": 2_420,
    "(modules)": 900,
}


@dataclass
class Sizes:
    """What was counted: lines per package and per file, and each function's length with its place."""

    packages: Counter[str] = field(default_factory=Counter)
    files: dict[str, int] = field(default_factory=dict)
    functions: list[tuple[int, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.packages.values())

    @property
    def median(self) -> float:
        return statistics.median(length for length, _ in self.functions)


def measure(package: Path) -> Sizes:
    sizes = Sizes()
    for path in sorted(package.rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(package.parent))
        inside = path.relative_to(package).parts
        sizes.files[name] = text.count("\n")
        sizes.packages[inside[0] if len(inside) > 1 else "(modules)"] += sizes.files[name]
        sizes.functions += function_lengths(ast.parse(text), name)
    return sizes


def function_lengths(tree: ast.AST, name: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{name}:{node.lineno} {node.name}"


def breaches(sizes: Sizes) -> Iterator[str]:
    """Each limit that is exceeded, as a sentence."""
    if sizes.total > MAX_TOTAL:
        yield f"quicksilver has {sizes.total:,} lines; its budget is {MAX_TOTAL:,} ({sizes.total - MAX_TOTAL:,} over)"
    for package, count in sizes.packages.items():
        if package not in BUDGETS:
            yield f"package {package} has no budget; add one to BUDGETS in tools/size.py"
        elif count > BUDGETS[package]:
            yield f"package {package} has {count:,} lines; its budget is {BUDGETS[package]:,}"
    for name, count in sizes.files.items():
        if count > MAX_FILE:
            yield f"{name} has {count} lines; a file has at most {MAX_FILE}"
    for length, where in sizes.functions:
        if length > MAX_FUNCTION:
            yield f"{where} has {length} lines; a function has at most {MAX_FUNCTION}"
    if sizes.median >= MAX_MEDIAN:
        yield f"the median function has {sizes.median:g} lines; it must be under {MAX_MEDIAN}"


def main() -> int:
    sizes = measure(PACKAGE)
    for package, count in sizes.packages.most_common():
        print(f"{count:7,} of {BUDGETS.get(package, 0):6,}  {package}")
    p90 = sorted(length for length, _ in sizes.functions)[int(0.9 * len(sizes.functions))]
    print(f"{sizes.total:7,} of {MAX_TOTAL:6,}  in total")
    print(f"{len(sizes.functions):,} functions: median {sizes.median:g} lines, 90th percentile {p90}")
    print("longest function: {} lines, {}".format(*max(sizes.functions)))
    over = list(breaches(sizes))
    for breach in over:
        print("over budget:", breach)
    return bool(over) and "--check" in sys.argv


if __name__ == "__main__":
    sys.exit(main())
