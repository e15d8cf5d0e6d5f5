"""Small charts as SVG text: the same input gives the same bytes, so that a check can compare files.

Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.small { font-size: 11px; fill: #59636e; }
.axis { stroke: #8c959f; stroke-width: 1; }
.s0 { fill: #0969da; } .s1 { fill: #afb8c1; } .s2 { fill: #d4a72c; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9198a1; }
.s0 { fill: #4493f8; } .s1 { fill: #656c76; } .s2 { fill: #bb8009; }
}
</style>"""


@dataclass(frozen=True)
class Chart:
    """Grouped bars: a value for each series in each group, each labelled with its number."""

    title: str
    series: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float]]]
    note: str = ""


def document(width: int, height: int, body: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return f"{head}\n{STYLE}\n{body}\n</svg>\n"


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{name} text-anchor="{anchor}">{escape(content)}</text>'


def bar_chart(chart: Chart, x: float, y: float, width: float, height: float) -> str:
    """The chart's elements, inside the given box."""
    parts = [text(x, y + 18, chart.title, "title")]
    at = x
    for i, name in enumerate(chart.series):
        parts += [f'<rect class="s{i}" x="{at:g}" y="{y + 26:g}" width="11" height="11" rx="2"/>']
        parts += [text(at + 16, y + 36, name)]
        at += 34 + 7.5 * len(name)
    top, base = y + 66, y + height - 40
    most = max(value for _, values in chart.groups for value in values)
    step = width / len(chart.groups)
    bar = min(46, step * 0.8 / len(chart.series))
    for index, (label, values) in enumerate(chart.groups):
        middle = x + step * (index + 0.5)
        left = middle - bar * len(values) / 2
        for i, value in enumerate(values):
            tall = (base - top) * value / most
            parts.append(
                f'<rect class="s{i}" x="{left + i * bar + 1:.1f}" y="{base - tall:.1f}"'
                f' width="{bar - 2:.1f}" height="{tall:.1f}" rx="2"/>'
            )
            parts.append(
                text(round(left + (i + 0.5) * bar, 1), round(base - tall - 5, 1), f"{value:,.0f}", "small", "middle")
            )
        parts.append(text(round(middle, 1), base + 16, label, "", "middle"))
    parts.append(f'<line class="axis" x1="{x:g}" y1="{base:g}" x2="{x + width:g}" y2="{base:g}"/>')
    parts.append(text(x, base + 36, chart.note, "small"))
    return "\n".join(parts)
