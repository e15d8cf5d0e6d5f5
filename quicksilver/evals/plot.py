"""Draws several reports in one figure: main metrics side by side, and tokens per forward by domain and decoder.

matplotlib is imported only in this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.evals.report import Report


def draw(reports: Sequence[Report], path: Path) -> None:
    """Write a PNG or SVG file, chosen by the file extension."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidRequest('the plot needs matplotlib: pip install ".[train]" in a checkout') from error
    figure = Figure(figsize=(11, 9), layout="constrained")
    scores, speeds = figure.subplots(2, 1)
    _draw_scores(scores, reports)
    _draw_speeds(speeds, reports)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_scores(axes: Any, reports: Sequence[Report]) -> None:
    bars: dict[str, dict[str, float]] = {}
    for report in reports:
        for cell in report.cells:
            if cell.value is not None and not cell.is_lower_better:
                name = report.model if cell.decoder == "likelihood" else f"{report.model}, {cell.decoder}"
                bars.setdefault(name, {})[cell.task] = 100 * cell.value
    _draw_bars(axes, bars)
    axes.set_ylabel("percent")
    axes.set_title("Main metric of each task")


def _draw_speeds(axes: Any, reports: Sequence[Report]) -> None:
    bars: dict[str, dict[str, float]] = {}
    for report in reports:
        for decoder, domains in report.speeds().items():
            shares = {domain: speed.tokens_per_forward for domain, speed in domains.items()}
            bars[f"{report.model}, {decoder}"] = {name: share for name, share in shares.items() if share is not None}
    _draw_bars(axes, bars)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("tokens per forward")
    axes.set_title("Tokens per forward (autoregressive decoding: 1)")


def _draw_bars(axes: Any, bars: dict[str, dict[str, float]]) -> None:
    """Draw one group of bars per label, with one bar per name in each group."""
    labels = list(dict.fromkeys(label for values in bars.values() for label in values))
    width = 0.8 / max(len(bars), 1)
    for i, (name, values) in enumerate(bars.items()):
        places = [labels.index(label) + i * width for label in values]
        axes.bar(places, list(values.values()), width, label=name)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(labels))], labels, rotation=45, ha="right")
    if bars:
        axes.legend(fontsize="small")
