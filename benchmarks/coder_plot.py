"""Pictures of `gpu_coder` from its dated JSON: tokens a second by domain and by streams, tokens a round by domain.

    python -m benchmarks.coder_plot [--results benchmarks/results] [--out .build/plots]

Needs matplotlib (the `train` extra) and no GPU. Of every section the newest run that has it counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = dict[str, Any]


def newest_sections(results: Path) -> tuple[dict[str, list[Row]], str]:
    """Rows by section, of bf16, and the hardware."""
    found: dict[str, list[Row]] = {}
    hardware = ""
    for path in sorted(results.glob("gpu_coder-*.json")):
        report = json.loads(path.read_text())
        if report["settings"].get("weights", "bfloat16") != "bfloat16":
            continue
        found |= report["sections"]
        hardware = report["hardware"]
    return found, hardware


# Variants in the tables that are left out of the plot.
LEFT_OUT = ("verify 8", "verify 16 with a tree of 16")


def draw_speed(axes: Axes, rows: list[Row]) -> None:
    shown = [row for row in rows if row["way"] not in LEFT_OUT]
    _draw_groups(axes, [(row["domain"], row["way"], row["decode_tok_per_s"]) for row in shown])
    axes.set(ylabel="tokens a second", title="One request, real text, behind the first token")


def draw_rounds(axes: Axes, rows: list[Row]) -> None:
    shown = [row for row in rows if row["tokens_per_round"] is not None and "first" not in row]
    _draw_groups(axes, [(row["domain"], _canvas_of(row), row["tokens_per_round"]) for row in shown])
    axes.set(ylabel="tokens a round", title="What a draft and its verification yield")


def _canvas_of(row: Row) -> str:
    rows = row.get("tree_rows")
    return f"canvas of {row['canvas_len']}" + (f", tree of {rows}" if rows else "")


def draw_streams(axes: Axes, rows: list[Row]) -> None:
    for way in dict.fromkeys(row["way"] for row in rows):
        points = sorted((row["streams"], row["tok_per_s"]) for row in rows if row["way"] == way)
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=way)
    counts = sorted({row["streams"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="streams", ylabel="tokens a second, all together")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_title("Many requests at a time")
    axes.legend()


def _draw_groups(axes: Axes, points: list[tuple[str, str, float]]) -> None:
    """Draw one group per domain, with one bar per decoder."""
    groups, names = (list(dict.fromkeys(point[i] for point in points)) for i in (0, 1))
    width = 0.8 / max(len(names), 1)
    for i, name in enumerate(names):
        mine = [(groups.index(group) + i * width, value) for group, way, value in points if way == name]
        bars = axes.bar([x for x, _ in mine], [y for _, y in mine], width, label=name)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=6, rotation=90, padding=2)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(groups))], groups)
    axes.margins(y=0.15)
    axes.legend(fontsize=8)


PANELS = (("speed", draw_speed), ("streams", draw_streams), ("rounds", draw_rounds))


def draw_all(results: Path, out: Path) -> list[Path]:
    sections, hardware = newest_sections(results)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PANELS:
        if sections.get(name):
            figure = Figure(figsize=(9, 5), layout="constrained")
            draw(figure.subplots(), sections[name])
            figure.suptitle(hardware, fontsize=9)
            written.append(out / f"coder-{name}.png")
            figure.savefig(written[-1], dpi=110)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--out", type=Path, default=Path(".build/plots"))
    options = parser.parse_args()
    for path in draw_all(options.results, options.out):
        print(path)


if __name__ == "__main__":
    main()
