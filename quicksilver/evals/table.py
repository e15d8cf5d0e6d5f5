"""Shows reports side by side: main metrics and tokens per forward as a text table, or as one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.evals.report import Cell, Report

# Task and decoder.
Key = tuple[str, str]

_DIGITS = {1: 2, 100: 1}


def compare(reports: Sequence[Report]) -> str:
    """Main metrics per task and model, differences to the last model, and the cost of the answers."""
    return "\n\n".join(part for part in (_scores(reports), _costs(reports), _notes(reports)) if part)


def _scores(reports: Sequence[Report]) -> str:
    pairs = _paired(reports)
    rows = [["task", "metric", "n", *(report.model for report in reports), *(["change"] if len(reports) > 1 else [])]]
    for (task, decoder), cells in pairs.items():
        cell = next(cell for cell in cells if cell is not None)
        name = task if decoder == "likelihood" else f"{task} ({decoder})"
        for metric in cell.headlines:
            values = [c.metrics.get(metric) if c else None for c in cells]
            rows.append([name, metric, str(cell.num_items), *_numbers(values, 1 if cell.is_lower_better else 100)])
    averages = [report.average() for report in reports]
    if any(average is not None for average in averages):
        rows.append(["multiple choice, average", "", "", *_numbers(averages, 100)])
    return _lay_out(rows)


def _paired(reports: Sequence[Report]) -> dict[Key, list[Cell | None]]:
    """Pair the cells of each task, under the decoders of the first report that has the task. A model that ran the task
    under only one other decoder, such as the parent, is compared with all of them."""
    by_task = [_by_task(report) for report in reports]
    pairs: dict[Key, list[Cell | None]] = {}
    seen: set[str] = set()
    for report in reports:
        for cell in report.cells:
            if cell.task not in seen:
                pairs[cell.task, cell.decoder] = [_match(found.get(cell.task, []), cell.decoder) for found in by_task]
        seen |= {cell.task for cell in report.cells}
    return pairs


def _by_task(report: Report) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in report.cells:
        found.setdefault(cell.task, []).append(cell)
    return found


def _match(cells: Sequence[Cell], decoder: str) -> Cell | None:
    same = [cell for cell in cells if cell.decoder == decoder]
    return same[0] if same else (cells[0] if len(cells) == 1 else None)


def _numbers(values: Sequence[float | None], scale: int) -> list[str]:
    """Format the values of all models and the difference of the first and last. Shares are shown in percent."""
    shown = ["-" if value is None else f"{scale * value:.{_DIGITS[scale]}f}" for value in values]
    if len(values) < 2:
        return shown
    first, last = values[0], values[-1]
    change = "" if first is None or last is None else f"{scale * (first - last):+.{_DIGITS[scale]}f}"
    return [*shown, change]


def _costs(reports: Sequence[Report]) -> str:
    rows = [["model", "decoder", "domain", "tokens", "per forward", "per round", "accepted"]]
    for report in reports:
        for decoder, domains in report.speeds().items():
            for domain, speed in domains.items():
                shares = (speed.tokens_per_forward, speed.tokens_per_round, speed.acceptance)
                shown = ["-" if share is None else f"{share:.2f}" for share in shares]
                rows.append([report.model, decoder, domain, str(speed.tokens), *shown])
    return _lay_out(rows) if len(rows) > 1 else ""


def _notes(reports: Sequence[Report]) -> str:
    """Agreement between decoders, and remarks on incomplete cells."""
    lines = []
    for report in reports:
        for decoder in report.speeds():
            same, count = report.agreement(decoder)
            if count and decoder != "ar":
                lines.append(f"{report.model}: {decoder} gives the answer of ar in {same} of {count} answers")
        for cell in report.cells:
            where = f"{report.model}: {cell.task} ({cell.decoder})"
            if cell.num_failed:
                first = next(record.error for record in cell.records if record.error)
                lines.append(f"{where}: {cell.num_failed} items failed and are left out; the first: {first}")
            if cell.is_cut:
                lines.append(f"{where}: stopped by the time limit after {cell.num_items} items")
    return "\n".join(lines)


def _lay_out(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


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
