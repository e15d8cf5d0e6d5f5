"""Accuracy and cost of a cascade of two models, beside a random choice between them at the same cost.

    python -m benchmarks.hybrid_cascade answers.jsonl [--price 11] [--out benchmarks/results]

The input is the file of `cascade_answers`. The cost of an item is in tokens of the small model: a token that the strong
one processes, of the prompt or of the answer, costs `--price` of them, the ratio of the parameters. A random choice
reaches every point of the straight line between the two models, so the *gain* of a cascade is its accuracy minus the
line's at the same cost. The threshold of each gate is fitted on one half of the items and applied to the other, and the
reverse, so every item is decided by a threshold that it did not influence; with `--folds`, on all folds but one. The
interval is a 95 % bootstrap over items.

| gate | asks the strong model |
|---|---|
| a field of `Evidence` | below a threshold, and where the token limit cut the answer off |
| `agreement` | if fewer of the samples agree with the answer (the samples cost their tokens) |
| `malformed` | below a mean log-probability, and where a program does not parse or an answer has no number |
| `band` | from one mean log-probability to another: less sure answers are delivered, too |
| `short`, `long` | if the message has at most, or at least, so many characters; the small model is then not asked |
| `band-short`, `likely-short` | as `band` or below a mean log-probability, of messages of at most so many characters |
| `fitted` | where a linear function of all evidence expects more right answers per token |
| `chosen` | as the gate of `SERVED` with the largest gain, cross-fitted within the items that the fold is fitted on |

A server has the cascades of `SERVED` today: `max_chars` is a condition of rules. Of several gates the best
one is too good by chance; `chosen` is not, because no item influences the gate that decides it.
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
# Gates with other evidence, which the lines of `cascade_answers --score` have.
MORE_GATES = ("agreement", "malformed", "band", "short", "long", "likely-short", "band-short", "fitted", "chosen")
# Cascades that the `[hybrid]` table of a server can express.
SERVED = ("mean_logprob", "min_logprob", "likely-short")
INNER_FOLDS = 2
# Candidates of each bound of a gate with several bounds, as quantiles of the items that it is fitted on.
NUM_QUANTILES = 17
RIDGE = 10.0
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Item:
    """The two answers to one item. Costs are in tokens of the small model."""

    is_right: tuple[bool, bool]
    costs: tuple[float, float]
    # What the question of the gate costs in addition.
    question_cost: float
    evidence: Evidence
    # What the samples cost in addition, the share of them that agrees with the answer, the length of the message, and
    # whether the answer can be compared at all.
    sample_cost: float = 0.0
    agreement: float | None = None
    chars: int = 0
    is_well_formed: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """The cascade on items that did not determine its thresholds."""

    gate: str
    # The gates that decided, if they were chosen, and the bounds of each fold.
    gates: tuple[str, ...]
    thresholds: tuple[tuple[float, ...], ...]
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
            row.get("sample_tokens", 0),
            row.get("agreement"),
            row.get("chars", 0),
            row.get("is_well_formed", True),
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
        extra = {"yes": item.question_cost, "agreement": item.sample_cost}.get(gate, 0.0)
        # A rule about the message is applied before a model is asked.
        asks_small = not (gate in ("short", "long") and is_escalated)
        cost = asks_small * small_cost + extra + is_escalated * strong_cost
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


@dataclass(frozen=True, slots=True)
class Policy:
    """Which items a gate with these bounds escalates."""

    gate: str
    bounds: tuple[float, ...]

    def escalates(self, items: Sequence[Item]) -> list[bool]:
        if self.gate in GATES:
            return escalations(items, self.gate, self.bounds[0])
        if self.gate == "fitted":
            weights, least = np.array(self.bounds[:-1]), self.bounds[-1]
            return [bool(each >= least) for each in features(items) @ weights]
        return [_is_escalated(self.gate, self.bounds, item) for item in items]


def _is_escalated(gate: str, bounds: tuple[float, ...], item: Item) -> bool:
    value = item.evidence.mean_logprob if item.evidence.mean_logprob is not None else 0.0
    if gate in ("short", "long"):
        return item.chars <= bounds[0] if gate == "short" else item.chars >= bounds[0]
    if gate == "agreement":
        return not item.evidence.is_complete or (item.agreement or 0.0) < bounds[0]
    if gate == "malformed":
        return value < bounds[0] or not item.is_well_formed or not item.evidence.is_complete
    if gate == "band":
        return bounds[0] <= value < bounds[1]
    if gate == "likely-short":
        return value < bounds[0] and item.chars <= bounds[1]
    return bounds[0] <= value < bounds[1] and item.chars <= bounds[2]


def features(items: Sequence[Item]) -> Values:
    """(items, features) evidence in about the same units, with a constant."""

    def number(value: float | None) -> float:
        return 0.0 if value is None else float(value)

    return np.array(
        [
            (
                1.0,
                number(item.evidence.mean_logprob),
                number(item.evidence.min_logprob) / 4,
                number(item.evidence.acceptance),
                np.log(max(item.chars, 1)) - 6,
                np.log(max(item.costs[0], 1)) - 5,
                float(item.evidence.is_complete),
                float(item.is_well_formed),
            )
            for item in items
        ]
    )


def candidates(items: Sequence[Item], gate: str) -> list[tuple[float, ...]]:
    """Bounds that are compared on the items that a gate is fitted on."""
    if gate in GATES:
        return [(fit_threshold(items, gate),)]
    shares = np.linspace(0, 1, NUM_QUANTILES)
    logprobs = [-1e9, *np.quantile([item.evidence.mean_logprob or 0.0 for item in items], shares).tolist(), 1e-9]
    chars = np.quantile([item.chars for item in items], shares).tolist()
    bands: list[tuple[float, ...]] = [(low, high) for low in logprobs for high in logprobs if low < high]
    if gate in ("short", "long"):
        return [(each,) for each in (-1.0, *chars, 1e9)]
    if gate == "agreement":
        return [(each,) for each in (0.0, *sorted({item.agreement or 0.0 for item in items}), 1.1)]
    if gate == "malformed":
        return [(each,) for each in logprobs]
    if gate == "band":
        return bands
    if gate == "likely-short":
        return [(each, longest) for each in logprobs for longest in chars]
    if gate == "band-short":
        return [(*band, longest) for band in bands[:: len(shares) // 8] for longest in chars[1::2]]
    table = features(items)
    benefit = np.array([float(strong) - float(small) for small, strong in (item.is_right for item in items)])
    cost = np.array([item.costs[1] for item in items])
    weights = np.linalg.solve(
        table.T @ table + RIDGE * np.eye(table.shape[1]), table.T @ (benefit / cost * cost.mean())
    )
    return [(*weights.tolist(), least) for least in np.quantile(table @ weights, shares).tolist()]


def fit(items: Sequence[Item], gate: str) -> Policy:
    """The bounds with the largest gain on `items`."""
    if gate == "chosen":
        gains = [cross_fitted(items, each, INNER_FOLDS).gain for each in SERVED]
        return fit(items, SERVED[int(np.argmax(gains))])
    policies = [Policy(gate, bounds) for bounds in candidates(items, gate)]
    gains = [float(gain_of(outcomes(items, gate, each.escalates(items)).mean(axis=0))) for each in policies]
    return policies[int(np.argmax(gains))]


def cross_fitted(items: Sequence[Item], gate: str, num_folds: int = 2) -> Result:
    """Each fold is decided by bounds that were fitted on the others."""
    parts, fitted, gates, escalated = [], [], list[str](), 0
    for number in range(num_folds):
        fold = items[number::num_folds]
        policy = fit([item for place, item in enumerate(items) if place % num_folds != number], gate)
        escalates = policy.escalates(fold)
        parts.append(outcomes(fold, policy.gate, escalates))
        escalated += sum(escalates)
        fitted.append(tuple(round(each, 4) for each in policy.bounds))
        gates.append(policy.gate)
    table = np.concatenate(parts)
    means = table.mean(axis=0)
    picks = np.random.default_rng(0).integers(0, len(table), (NUM_RESAMPLES, len(table)))
    low, high = np.percentile(gain_of(table[picks].mean(axis=1)), [2.5, 97.5])
    return Result(
        gate=gate,
        gates=tuple(dict.fromkeys(gates)),
        thresholds=tuple(fitted),
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


def report_of(rows: Sequence[dict[str, Any]], price: float, num_folds: int = 2) -> list[dict[str, Any]]:
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        items = read_items([row for row in rows if row["task"] == task], price)
        gates = [gate for gate in GATES if any(getattr(item.evidence, gate) is not None for item in items)]
        if any(item.chars for item in items):
            gates += [gate for gate in MORE_GATES if gate != "agreement" or any(item.sample_cost for item in items)]
        results = [asdict(cross_fitted(items, gate, num_folds)) for gate in gates]
        found.append({"task": task, "price": price, **ends_of(items), "gates": results})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--price", type=float, nargs="+", default=[11.0], help="price of a token of the strong model")
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.answers.read_text().splitlines()]
    tasks = [task for price in options.price for task in report_of(rows, price, options.folds)]
    for task in tasks:
        print(json.dumps({key: value for key, value in task.items() if key != "gates"}))
        for result in task["gates"]:
            print("  ", json.dumps(result))
    kept = [{key: value for key, value in row.items() if key not in ("answers", "samples")} for row in rows]
    report = {**machine_facts(), "models": ["nano", "coder-1.5b"], "tasks": tasks, "items": kept}
    (options.out / f"hybrid-cascade-{report['date'][:10]}.json").write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
