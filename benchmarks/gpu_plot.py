"""Plots of the GPU benchmarks from their dated JSON: forwards against the roofline, rounds at batch 1 and, if measured,
tokens per second by streams and time to the first token by prompt length.

    python -m benchmarks.gpu_plot [--results benchmarks/results] [--out .build/plots]

Needs matplotlib (the `train` extra) and no GPU. Of equal measurements the newest is used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = dict[str, Any]
# Switches of earlier reports that are defaults now.
NOW_DEFAULT = ("", "fp8=1", "keys=128")
COLOURS = {"135M": "tab:blue", "1.5B": "tab:orange", "4B": "tab:green", "8B": "tab:red"}


def newest(results: Path, benchmark: str, key: Callable[[Row], Hashable]) -> list[Row]:
    """The rows of a benchmark that ran with default switches, with their settings; of equal keys the newest. Older
    reports call switches `whole` and `try`, and the matmul mode `product`."""
    found: dict[Hashable, Row] = {}
    for path in sorted(results.glob(f"{benchmark}-*.json")):
        report = json.loads(path.read_text())
        settings = report["settings"]
        if settings.get("overlap") or settings.get("switches", settings.get("whole", "")) not in NOW_DEFAULT:
            continue
        for row in report["rows"]:
            row = {"weights": "bfloat16", **settings, "hardware": report["hardware"], **row}
            matmul = row.get("matmul", row.get("product", "fastest"))
            is_default = row.get("switches", row.get("try", "")) in NOW_DEFAULT and matmul == "fastest"
            if "failed" not in row and is_default:
                found[key(row)] = row
    return list(found.values())


def series(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    table: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        table.setdefault(tuple(row[name] for name in names), []).append(row)
    return table


def draw_roofline(axes: Axes, rows: list[Row]) -> None:
    for (model, weights), points in sorted(series(rows, "model", "weights").items()):
        points.sort(key=lambda row: row["rows"])
        colour, counts = COLOURS[model], [row["rows"] for row in points]
        style = {"bfloat16": "o-", "fp8": "s--", "int4": "^:"}[weights]
        speeds = [row["forwards_per_s"] for row in points]
        shares = f"{points[0]['roofline_pct']:.0f} to {points[-1]['roofline_pct']:.0f} %"
        axes.plot(counts, speeds, style, color=colour, label=f"{model} {weights}, {shares}")
        axes.axhline(1e3 / points[0]["floor_ms"], color=colour, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="forwards a second")
    axes.set_xticks([1, 16, 32, 64, 256], ["1", "16", "32", "64", "256"])
    axes.set_title("One forward; dotted: weights read once at copy bandwidth, and the share of that")
    axes.legend(fontsize=8, loc="upper right")


def draw_rounds(axes: Axes, rows: list[Row]) -> None:
    """Time of a step at batch 1, host included; what it yields depends on the weights."""
    rows = sorted(rows, key=lambda row: row["model"])
    labels = [f"{row['model']}\n{row['decoder'].replace(' in one', chr(10) + 'in one')}" for row in rows]
    bars = axes.bar(range(len(rows)), [row["ms"] for row in rows], color=[COLOURS[row["model"]] for row in rows])
    axes.bar_label(bars, fmt="%.2f")
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set(ylabel="ms", title="A round, or a token of ar, through the engine at batch 1")


def draw_streams(axes: Axes, rows: list[Row]) -> None:
    streams = [row["streams"] for row in rows]
    canvas = f"block {rows[0]['block']} at {rows[0]['tokens_per_forward']:g} tokens a forward"
    axes.plot(streams, [row["tok_per_s"] for row in rows], "o-", label=canvas)
    axes.plot(streams, [row["ar_tok_per_s"] for row in rows], "o-", label="ar")
    axes.set(xscale="log", yscale="log", xlabel="streams", ylabel="tokens a second, all together")
    axes.set_title(f"{rows[0]['model']} by number of streams")
    axes.legend()


def draw_prompts(axes: Axes, rows: list[Row]) -> None:
    for (weights,), kept in sorted(series(rows, "weights").items()):
        points = sorted((row["prompt"], row["ms"]) for row in kept if not row["past"])
        axes.plot([length for length, _ in points], [ms for _, ms in points], "o-", label=weights)
    axes.legend()
    axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="ms to the first token")
    axes.set_title(f"{rows[0]['model']}: time to the first token")


PANELS: tuple[tuple[str, Callable[[Axes, list[Row]], None], Callable[[Row], Hashable]], ...] = (
    ("gpu_forward", draw_roofline, lambda row: (row["model"], row["weights"], row["rows"])),
    ("gpu_verify", draw_rounds, lambda row: (row["model"], row["weights"], row["decoder"])),
    ("gpu_batch", draw_streams, lambda row: (row["model"], row["streams"])),
    ("gpu_prefill", draw_prompts, lambda row: (row["model"], row["weights"], row["prompt"], row["past"])),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--out", type=Path, default=Path(".build/plots"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for benchmark, draw, key in PANELS:
        rows = newest(options.results, benchmark, key)
        if rows:
            figure = Figure(figsize=(8, 5), layout="constrained")
            draw(figure.subplots(), rows)
            figure.suptitle(rows[0]["hardware"], fontsize=9)
            figure.savefig(options.out / f"{benchmark.replace('_', '-')}.png", dpi=110)
            print(options.out / f"{benchmark.replace('_', '-')}.png")


if __name__ == "__main__":
    main()
