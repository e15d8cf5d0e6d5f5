"""A line of numbers as a small chart of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


def plot(values: Sequence[float], width: int = 60, height: int = 6) -> str:
    """Columns of blocks, the largest value at the top; values that share a column are averaged."""
    if not values:
        return ""
    columns = _averaged(values, min(width, len(values)))
    low, high = min(0.0, *columns), max(*columns, 1e-9)
    eighths = [round((value - low) / (high - low) * height * 8) for value in columns]
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{high:8.3f} ┤" if row == height - 1 else f"{low:8.3f} ┤" if row == 0 else f"{'':8} │"
        lines.append(label + "".join(BLOCKS[min(max(level - 8 * row, 0), 8)] for level in eighths))
    return "\n".join(lines)


def _averaged(values: Sequence[float], num: int) -> list[float]:
    bounds = [len(values) * i // num for i in range(num + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
