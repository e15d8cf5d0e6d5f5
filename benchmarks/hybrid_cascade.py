"""Accuracy and cost of a cascade of two models, beside a random choice between them at the same cost.

    python -m benchmarks.hybrid_cascade answers.jsonl [--price 11] [--out benchmarks/results]

The input is the file of `cascade_answers`. The cost of an item is in tokens of the small model: a token that the strong
one processes, of the prompt or of the answer, costs `--price` of them, the ratio of the parameters. A random choice
reaches every point of the straight line between the two models, so the *gain* of a cascade is its accuracy minus the
line's at the same cost. The threshold of each gate is fitted on one half of the items and applied to the other, and the
reverse, so every item is decided by a threshold that it did not influence. The interval is a 95 % bootstrap over items.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quicksilver.evals.report import machine_facts
from quicksilver.server.hybrid.gate import Evidence, find_doubt
from quicksilver.server.hybrid.policy import GateSettings

NUM_RESAMPLES = 2000
# Fields of `Evidence`, each compared by a gate of its own.
GATES = ("mean_logprob", "min_logprob", "acceptance", "yes")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Item:
    """The two answers to one item. Costs are in tokens of the small model."""

    is_right: tuple[bool, bool]
    costs: tuple[float, float]
    # What the question of the gate costs in addition.
    question_cost: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Result:
    """The cascade on items that did not determine its thresholds."""

    gate: str
    thresholds: tuple[float, float]
    accuracy: float
    # As a share of what the strong model costs alone.
    cost: float
    escalated: float
    line: float
    gain: float
    gain_low: float
    gain_high: float


def read_items(rows: Sequence[dict[str, Any]], price: float) -> list[Item]:
    return [
        Item(
            (row["right"][0], row["right"][1]),
            (row["tokens"][0], price * row["tokens"][1]),
            row["question_tokens"],
            Evidence(**row["evidence"]),
        )
        for row in rows
    ]


def settings_of(gate: str, threshold: float) -> GateSettings:
    if gate == "yes":
        return GateSettings(question="?", question_probability=threshold)
    return GateSettings(**{gate: threshold})


def escalations(items: Sequence[Item], gate: str, threshold: float) -> list[bool]:
    settings = settings_of(gate, threshold)
    return [find_doubt(settings, item.evidence) is not None for item in items]


def outcomes(items: Sequence[Item], gate: str, escalates: Sequence[bool]) -> Values:
    """(items, 6): right and cost of the cascade, of the small model and of the strong one."""
    rows = []
    for item, is_escalated in zip(items, escalates, strict=True):
        (small_cost, strong_cost), (small, strong) = item.costs, item.is_right
        cost = small_cost + (item.question_cost if gate == "yes" else 0) + is_escalated * strong_cost
        rows.append((strong if is_escalated else small, cost, small, small_cost, strong, strong_cost))
    return np.array(rows, dtype=np.float64)


def line_at(means: Values) -> Values:
    """The accuracy of a random choice at the cost of the cascade, from means of `outcomes` (..., 6)."""
    _, cost, small, small_cost, strong, strong_cost = np.moveaxis(means, -1, 0)
    share = np.clip((cost - small_cost) / (strong_cost - small_cost), 0.0, 1.0)
    return np.asarray(small + share * (strong - small))


def gain_of(means: Values) -> Values:
    return np.asarray(means[..., 0] - line_at(means))


def fit_threshold(items: Sequence[Item], gate: str) -> float:
    """The threshold with the largest gain on `items`; of equal ones the smallest, which escalates least."""
    values = {getattr(item.evidence, gate) for item in items} - {None}
    lowest = 0.0 if gate in ("acceptance", "yes") else -1e9
    candidates = [lowest, *sorted(values)]
    gains = [float(gain_of(outcomes(items, gate, escalations(items, gate, each)).mean(axis=0))) for each in candidates]
    return candidates[int(np.argmax(gains))]


def cross_fitted(items: Sequence[Item], gate: str) -> Result:
    halves = (items[0::2], items[1::2])
    first, second = (fit_threshold(half, gate) for half in halves)
    # The threshold of a half decides the other one.
    parts = [
        outcomes(half, gate, escalations(half, gate, threshold))
        for half, threshold in zip(halves, (second, first), strict=True)
    ]
    escalated = sum(sum(escalations(half, gate, each)) for half, each in zip(halves, (second, first), strict=True))
    table = np.concatenate(parts)
    means = table.mean(axis=0)
    picks = np.random.default_rng(0).integers(0, len(table), (NUM_RESAMPLES, len(table)))
    low, high = np.percentile(gain_of(table[picks].mean(axis=1)), [2.5, 97.5])
    return Result(
        gate=gate,
        thresholds=(first, second),
        accuracy=float(means[0]),
        cost=float(means[1] / means[5]),
        escalated=escalated / len(table),
        line=float(line_at(means)),
        gain=float(gain_of(means)),
        gain_low=float(low),
        gain_high=float(high),
    )


def ends_of(items: Sequence[Item]) -> dict[str, Any]:
    """The two models alone, and what no gate can exceed: the strong model is asked only where it alone is right."""
    is_needed = [strong and not small for small, strong in (item.is_right for item in items)]
    means = outcomes(items, "", is_needed).mean(axis=0)
    return {
        "items": len(items),
        "small": {"accuracy": means[2], "cost": means[3] / means[5]},
        "strong": {"accuracy": means[4], "cost": 1.0},
        "perfect_gate": {"accuracy": means[0], "cost": means[1] / means[5], "gain": float(gain_of(means))},
    }


def report_of(rows: Sequence[dict[str, Any]], price: float) -> list[dict[str, Any]]:
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        items = read_items([row for row in rows if row["task"] == task], price)
        gates = [gate for gate in GATES if any(getattr(item.evidence, gate) is not None for item in items)]
        results = [asdict(cross_fitted(items, gate)) for gate in gates]
        found.append({"task": task, "price": price, **ends_of(items), "gates": results})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--price", type=float, nargs="+", default=[11.0], help="price of a token of the strong model")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.answers.read_text().splitlines()]
    tasks = [task for price in options.price for task in report_of(rows, price)]
    for task in tasks:
        print(json.dumps({key: value for key, value in task.items() if key != "gates"}))
        for result in task["gates"]:
            print("  ", json.dumps(result))
    kept = [{key: value for key, value in row.items() if key != "answers"} for row in rows]
    report = {**machine_facts(), "models": ["nano", "coder-1.5b"], "tasks": tasks, "items": kept}
    (options.out / f"hybrid-cascade-{report['date'][:10]}.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
