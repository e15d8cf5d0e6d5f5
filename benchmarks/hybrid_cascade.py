"""Accuracy and cost of a cascade of two models of one server on word problems (GSM8K), over all thresholds of the gate.

    quicksilver serve --model nano --model coder-1.5b
    python -m benchmarks.hybrid_cascade --data DATA --limit 40 [--url http://127.0.0.1:8480] [--out benchmarks/results]

Each model answers each problem once at temperature 0. The gate of hybrid routing is then applied to the recorded
log-probabilities, so one pair of runs gives the whole curve. The cost is in tokens of the small model: a token of the
strong one costs `--price` of them, the ratio of their parameters. The line between the two models, which a random
choice reaches at the same cost, is the baseline.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from quicksilver.evals.report import machine_facts
from quicksilver.evals.task import Answer
from quicksilver.evals.tasks.gsm8k import WordProblem, load, score
from quicksilver.server.hybrid.gate import Evidence, find_doubt
from quicksilver.server.hybrid.policy import GateSettings


@dataclass(frozen=True, slots=True)
class Solved:
    """One answer: whether it is right, its tokens, and the mean log-probability of its tokens."""

    is_right: bool
    prompt_tokens: int
    tokens: int
    mean_logprob: float
    is_complete: bool

    @property
    def all_tokens(self) -> int:
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True, slots=True)
class Point:
    threshold: float
    accuracy: float
    cost: float
    escalated: float
    # What a random choice between the two models reaches at this cost.
    baseline: float


def solve(client: httpx.Client, model: str, problem: WordProblem, max_tokens: int) -> Solved:
    text = f"{problem.question}\n\nThink step by step and end with the answer as a number."
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "logprobs": True,
    }
    reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    choice = reply["choices"][0]
    values = [one["logprob"] for one in choice["logprobs"]["content"]] or [0.0]
    is_right = bool(score(problem, Answer(text=choice["message"]["content"] or ""))["acc"])
    usage = reply["usage"]
    return Solved(
        is_right,
        usage["prompt_tokens"],
        usage["completion_tokens"],
        sum(values) / len(values),
        choice["finish_reason"] != "length",
    )


def curve(small: Sequence[Solved], strong: Sequence[Solved], price: float) -> list[Point]:
    """A point for every threshold that changes a decision, from no escalation to escalation of everything."""
    thresholds = [-1e9, *sorted({one.mean_logprob for one in small}), 0.0]
    ends = [point_of(small, strong, price, [is_all] * len(small)) for is_all in (False, True)]
    (low_accuracy, low_cost, _), (high_accuracy, _, _) = ends
    # A random choice asks one model, so the upper end of the baseline has no cost of the small model.
    high_cost = price * sum(one.all_tokens for one in strong) / len(strong)
    points = []
    for threshold in thresholds:
        gate = GateSettings(mean_logprob=threshold)
        doubts = [
            find_doubt(gate, Evidence(mean_logprob=one.mean_logprob, is_complete=one.is_complete)) is not None
            for one in small
        ]
        accuracy, cost, escalated = point_of(small, strong, price, doubts)
        share = min(1.0, (cost - low_cost) / (high_cost - low_cost))
        points.append(
            Point(threshold, accuracy, cost, escalated, low_accuracy + share * (high_accuracy - low_accuracy))
        )
    return points


def point_of(
    small: Sequence[Solved], strong: Sequence[Solved], price: float, escalates: Sequence[bool]
) -> tuple[float, float, float]:
    """Accuracy, mean cost and escalated share."""
    rows = list(zip(small, strong, escalates, strict=True))
    accuracy = sum((b if escalated else a).is_right for a, b, escalated in rows) / len(rows)
    cost = sum(a.all_tokens + price * b.all_tokens * escalated for a, b, escalated in rows) / len(rows)
    return accuracy, cost, sum(escalates) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8480")
    parser.add_argument("--small", default="nano")
    parser.add_argument("--strong", default="coder-1.5b")
    parser.add_argument("--price", type=float, default=11.0, help="price of a token of the strong model")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    problems = list(load(options.data))[: options.limit]
    answers: dict[str, list[Solved]] = {}
    with httpx.Client(base_url=options.url, timeout=600) as client:
        for model in (options.small, options.strong):
            answers[model] = []
            for problem in problems:
                answers[model].append(solve(client, model, problem, options.max_tokens))
                print(model, len(answers[model]), answers[model][-1], flush=True)
    points = curve(answers[options.small], answers[options.strong], options.price)
    rows: list[dict[str, Any]] = [asdict(point) for point in points]
    for row in rows:
        print(json.dumps(row))
    report = {
        **machine_facts(),
        "settings": {name: str(value) for name, value in vars(options).items() if name not in ("out", "data")},
        "answers": {model: [asdict(one) for one in found] for model, found in answers.items()},
        "rows": rows,
    }
    (options.out / f"hybrid-cascade-{report['date'][:10]}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
