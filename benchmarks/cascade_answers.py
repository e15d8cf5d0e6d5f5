"""Records the answers of the two models of a cascade, and what the gate of hybrid routing compares.

    quicksilver serve --model nano --model coder-1.5b
    python -m benchmarks.cascade_answers --data DATA --tasks mbpp=100 sciq=200 --out answers.jsonl

Both models answer every item once at temperature 0, and the small one then answers the question of the gate. A line is
written for every item; a second run continues where one ended. `hybrid_cascade` computes the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import gsm8k, multiple_choice, programs

MAX_TOKENS = 320
QUESTION = "Is the answer correct?"
# Tasks whose answer is one of the given choices.
CHOICE_TASKS = {task.name: task for task in multiple_choice.TASKS}


@dataclass(frozen=True, slots=True)
class CascadeItem:
    """A chat message and what its answer is scored with."""

    task: str
    index: int
    message: str
    source: Any
    choices: tuple[str, ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.message}]
        body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        return {**body, "choice": list(self.choices)} if self.choices else {**body, "logprobs": True}

    def is_right(self, text: str) -> bool:
        if self.task == "gsm8k":
            return bool(gsm8k.score(self.source, Answer(text=text))["acc"])
        if self.task == "mbpp":
            return bool(programs.score(self.source, Answer(text=text))["pass"])
        return text == self.choices[self.source.gold]


def load_items(data: Path, task: str) -> list[CascadeItem]:
    """All items of a task, in the order of the data."""
    if task == "gsm8k":
        problems = list(gsm8k.load(data))
        ending = "Think step by step and end with the answer as a number."
        return [CascadeItem(task, i, f"{each.question}\n\n{ending}", each) for i, each in enumerate(problems)]
    if task == "mbpp":
        return [CascadeItem(task, i, each.request, each) for i, each in enumerate(programs.load_mbpp(data))]
    questions = list(CHOICE_TASKS[task].load(data))
    return [CascadeItem(task, i, _choice_message(each), each, each.choices) for i, each in enumerate(questions)]


def _choice_message(item: multiple_choice.MultipleChoiceItem) -> str:
    """The question alone: nano is right as often as by chance where the message lists the choices."""
    return item.prompt.removeprefix("Question:").removesuffix("Answer:").strip()


def sampled(items: Sequence[CascadeItem], limit: int) -> list[CascadeItem]:
    """The same sample in every run."""
    return random.Random(0).sample(items, min(limit, len(items)))


def record(client: httpx.Client, item: CascadeItem, models: Sequence[str]) -> dict[str, Any]:
    """Whether each model is right, the tokens that it processed, and the evidence of the gate."""
    replies = [_post(client, "/v1/chat/completions", {"model": model, **item.body}) for model in models]
    answers = [reply["choices"][0]["message"]["content"] or "" for reply in replies]
    text = f"user: {item.message}\nassistant: {answers[0]}"
    question = {"type": "predicate", "name": "gate", "instructions": QUESTION}
    decided = _post(client, "/v1/decisions", {"model": models[0], "input": text, "questions": [question]})
    return {
        "task": item.task,
        "index": item.index,
        "right": [item.is_right(text) for text in answers],
        "tokens": [reply["usage"]["total_tokens"] for reply in replies],
        "question_tokens": decided["usage"]["total_tokens"],
        "evidence": {**evidence_of(replies[0]), "yes": decided["answers"][0]["probability"]},
        "answers": answers,
    }


def evidence_of(reply: dict[str, Any]) -> dict[str, Any]:
    """The values that the gate compares, as far as a reply has them."""
    choice, counted = reply["choices"][0], reply["usage"]["quicksilver"]
    if choice.get("probabilities"):
        values = [math.log(max(*choice["probabilities"].values(), 1e-9))]
    else:
        values = [each["logprob"] for each in choice["logprobs"]["content"]] or [0.0]
    drafted = counted["drafted_tokens"]
    return {
        "mean_logprob": sum(values) / len(values),
        "min_logprob": min(values),
        "acceptance": counted["accepted_tokens"] / drafted if drafted else None,
        "is_complete": choice["finish_reason"] != "length",
    }


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = client.post(path, json=body).raise_for_status().json()
    return reply


def remaining(items: Iterable[CascadeItem], path: Path) -> list[CascadeItem]:
    lines = path.read_text().splitlines() if path.exists() else []
    done = {(row["task"], row["index"]) for row in map(json.loads, lines)}
    return [item for item in items if (item.task, item.index) not in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8480")
    parser.add_argument("--models", nargs=2, default=["nano", "coder-1.5b"], help="the small one, then the strong one")
    parser.add_argument("--at-once", type=int, default=1, help="items that are asked at a time")
    parser.add_argument("--tasks", nargs="+", default=["sciq=200", "arc_easy=200", "mbpp=120", "gsm8k=60"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asked = [each.split("=") for each in options.tasks]
    items = [item for task, limit in asked for item in sampled(load_items(options.data, task), int(limit))]
    waiting = remaining(items, options.out)
    with (
        httpx.Client(base_url=options.url, timeout=900) as client,
        options.out.open("a") as out,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        for row in pool.map(lambda item: record(client, item, options.models), waiting):
            out.write(json.dumps(row) + "\n")
            out.flush()
            print({key: value for key, value in row.items() if key != "answers"}, flush=True)


if __name__ == "__main__":
    main()
