"""Reports of two made-up models."""

from __future__ import annotations

from quicksilver.evals.report import Cell, Record, Report
from quicksilver.evals.speed import Speed


def _choice(task: str, value: float) -> Cell:
    return Cell(task, "multiple_choice", "likelihood", ("acc",), {"acc": value}, 10, 0, 1.0)


def _chat(decoder: str, value: float, speed: Speed) -> Cell:
    records = (Record(0, "hello", (("find", "{}"),), {"right": 1.0}), Record(1, error="row_failed: broken"))
    return Cell("sanity", "chat", decoder, ("right",), {"right": value}, 9, 1, 2.0, speed, records=records)


SKILL = Report(
    "skill",
    (
        _choice("piqa", 0.7),
        _choice("sciq", 0.5),
        Cell("wikitext2", "text", "likelihood", ("ppl",), {"ppl": 19.5}, 8, 0, 1.0, is_lower_better=True),
        _chat("ar", 0.9, Speed(9, 100, 90, 90)),
        _chat("verify K=16", 0.8, Speed(9, 100, 90, 60, 30, 450, 30)),
    ),
)
BASE = Report(
    "base",
    (
        _choice("piqa", 0.6),
        _choice("sciq", 0.5),
        Cell("wikitext2", "text", "likelihood", ("ppl",), {"ppl": 23.61}, 8, 0, 1.0, is_lower_better=True),
        _chat("ar", 0.4, Speed(9, 100, 80, 80)),
    ),
)
