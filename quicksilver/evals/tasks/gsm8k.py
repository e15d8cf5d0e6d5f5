"""GSM8K word problems. The last number of the answer is scored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class WordProblem:
    question: str
    result: float


def load(data: Path) -> Iterable[WordProblem]:
    records = pack_records(data, "gsm8k_test")
    return [WordProblem(str(record["question"]), _last_number(str(record["answer"])) or 0.0) for record in records]


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def ask(problem: WordProblem, writer: PromptBuilder) -> Generate:
    prompt = writer.chat(f"{problem.question}\n\nThink step by step and end with the answer as a number.")
    return Generate(prompt.ids, 320, prompt.stop, prompt.stop_ids)


def score(problem: WordProblem, answer: Answer) -> Metrics:
    found = _last_number(answer.text)
    return {"acc": float(found is not None and abs(found - problem.result) < 1e-6)}


TASKS = (Task("gsm8k", "math", ("acc",), load, ask, score, 100),)
