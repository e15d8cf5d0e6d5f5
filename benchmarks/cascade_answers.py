"""Records the answers of the two models of a cascade, and what the gate of hybrid routing compares.

    quicksilver serve --model nano --model coder-1.5b
    python -m benchmarks.cascade_answers --data DATA --tasks mbpp=100 sciq=200 --out answers.jsonl
    python -m benchmarks.cascade_answers --data DATA --score answers.jsonl --out scored.jsonl

Both models answer every item once at temperature 0, and the small one then answers the question of the gate and, with
`--samples`, generates further answers at temperature 0.7. A line is written for every item; a second run continues
where one ended. With `--unscored` the answers are not judged, and `--score` does it afterwards, so that no program runs
beside the models. `--serve` starts the server, and `--seconds` ends the run early. `hybrid_cascade` computes the
figures.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.cpu_load import ROOT, server
from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import gsm8k, multiple_choice, programs

MAX_TOKENS = 320
TEMPERATURE = 0.7
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


def record(client: httpx.Client, item: CascadeItem, models: Sequence[str], num_samples: int = 0) -> dict[str, Any]:
    """The answers, the tokens that each model processed, and the evidence of the gate."""
    replies = [_post(client, "/v1/chat/completions", {"model": model, **item.body}) for model in models]
    answers = [reply["choices"][0]["message"]["content"] or "" for reply in replies]
    text = f"user: {item.message}\nassistant: {answers[0]}"
    question = {"type": "predicate", "name": "gate", "instructions": QUESTION}
    decided = _post(client, "/v1/decisions", {"model": models[0], "input": text, "questions": [question]})
    return {
        "task": item.task,
        "index": item.index,
        "tokens": [reply["usage"]["total_tokens"] for reply in replies],
        "question_tokens": decided["usage"]["total_tokens"],
        "evidence": {**evidence_of(replies[0]), "yes": decided["answers"][0]["probability"]},
        "answers": answers,
        **(_samples(client, item, models[0], num_samples) if num_samples and not item.choices else {}),
    }


def _samples(client: httpx.Client, item: CascadeItem, model: str, num: int) -> dict[str, Any]:
    """Further answers of the small model, each with its own seed, and the tokens that it processes for them. They share
    the prompt of the first answer."""
    body = {name: value for name, value in item.body.items() if name != "logprobs"} | {"temperature": TEMPERATURE}
    replies = [_post(client, "/v1/chat/completions", {"model": model, **body, "seed": 1 + n}) for n in range(num)]
    return {
        "samples": [reply["choices"][0]["message"]["content"] or "" for reply in replies],
        "sample_tokens": sum(reply["usage"]["completion_tokens"] for reply in replies),
    }


def scored(row: dict[str, Any], item: CascadeItem) -> dict[str, Any]:
    """The line with whether each answer is right, and what a server can tell about the small model's answers: whether
    the program parses, and the share of the samples that agree with the answer."""
    checked = {"is_well_formed": is_well_formed(item, row["answers"][0])}
    if row.get("samples"):
        own = value_of(item, row["answers"][0])
        same = [own is not None and value_of(item, text) == own for text in row["samples"]]
        checked["agreement"] = sum(same) / len(same)
    return {**row, "right": [item.is_right(text) for text in row["answers"]], "chars": len(item.message), **checked}


def is_well_formed(item: CascadeItem, text: str) -> bool:
    """A program parses and defines the function that the tests call; another answer has a number."""
    if item.task != "mbpp":
        return value_of(item, text) is not None
    program = programs.program_of(item.source, text)
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == item.source.entry_point for node in tree.body)


def value_of(item: CascadeItem, text: str) -> Any:
    """What answers are compared by: the last number, the program without layout and comments, or the text."""
    if item.task == "gsm8k":
        found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
        return float(found[-1].replace(",", "")) if found else None
    if item.task == "mbpp":
        try:
            return ast.dump(ast.parse(programs.program_of(item.source, text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return text


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
    parser.add_argument("--serve", type=Path, metavar="LOG", help="start the server; its output goes to this file")
    parser.add_argument("--models", nargs=2, default=["nano", "coder-1.5b"], help="the small one, then the strong one")
    parser.add_argument("--at-once", type=int, default=1, help="items that are asked at a time")
    parser.add_argument("--tasks", nargs="+", default=["sciq=200", "arc_easy=200", "mbpp=120", "gsm8k=60"])
    parser.add_argument("--samples", type=int, default=0, help="further answers of the small model")
    parser.add_argument("--unscored", action="store_true")
    parser.add_argument("--score", type=Path, help="lines of a run with --unscored; asks no server")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further item is asked")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.score:
        score_file(options.data, options.score, options.out)
        return
    asked = [each.split("=") for each in options.tasks]
    items = [item for task, limit in asked for item in sampled(load_items(options.data, task), int(limit))]
    begun, waiting = time.monotonic(), remaining(items, options.out)
    with ExitStack() as stack:
        if options.serve:
            small, strong = options.models
            words = ("--model", strong, "--no-companion")
            options.url = stack.enter_context(server(ROOT, small, *words, kept_log=options.serve))
            print(f"{time.monotonic() - begun:.0f} s: the server is ready", flush=True)
        limits = httpx.Limits(max_connections=options.at_once)
        client = stack.enter_context(httpx.Client(base_url=options.url, timeout=900, limits=limits))
        out = stack.enter_context(options.out.open("a"))
        pool = stack.enter_context(ThreadPoolExecutor(options.at_once))

        def answer(item: CascadeItem) -> dict[str, Any] | None:
            if time.monotonic() - begun > options.seconds:
                return None
            row = record(client, item, options.models, options.samples)
            return row if options.unscored else scored(row, item)

        for number, row in enumerate(pool.map(answer, waiting)):
            if row is not None:
                out.write(json.dumps(row) + "\n")
                out.flush()
                if options.unscored and number % 100 == 0:
                    print(f"{time.monotonic() - begun:.0f} s: {number + 1} of {len(waiting)} items", flush=True)
                if not options.unscored:
                    hidden = ("answers", "samples")
                    print({key: value for key, value in row.items() if key not in hidden}, flush=True)
    print(f"{time.monotonic() - begun:.0f} s: {len(items) - len(remaining(items, options.out))} of {len(items)} items")


def score_file(data: Path, answers: Path, target: Path) -> None:
    """Judges the answers of a file, several at a time."""
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    items = {(item.task, item.index): item for task in {row["task"] for row in rows} for item in load_items(data, task)}
    with ThreadPoolExecutor(os.cpu_count()) as pool, target.open("w") as out:
        for row in pool.map(lambda row: scored(row, items[row["task"], row["index"]]), rows):
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
