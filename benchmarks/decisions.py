"""Decisions: their cost as a multiple of the prefill, and the calibration of their probabilities.

    python -m benchmarks.decisions cost --model nano
    python -m benchmarks.decisions calibrate --model nano --data DATA

`cost` scores an input of 1,000 tokens alone and with 50 questions, each as the fastest of several runs with an empty
prefix cache and with the row limits of the server: once with questions of one form, once with questions of five forms.
`calibrate` asks yes/no and multiple-choice items that no training used, fits the temperature on one half
and prints the expected calibration error of the other half before and after.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quicksilver.core import ScoreRequest, Scores
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.engine.load import LoadConfig, for_serving
from quicksilver.evals.data import pack_records
from quicksilver.evals.report import machine_facts
from quicksilver.llm import LLM
from quicksilver.server.endpoints.decisions.calibration import Calibration, expected_calibration_error
from quicksilver.server.endpoints.decisions.plan import Branch, score_request
from quicksilver.server.endpoints.decisions.question import (
    Option,
    Question,
    QuestionKind,
    QuestionWriter,
    write_input,
)

NUM_INPUT, NUM_RUNS = 1000, 5
TOPICS = [
    "sport", "food", "music", "money", "work", "school", "travel", "health", "weather", "art", "science", "law", "war",
    "peace", "love", "death", "family", "animals", "plants", "cars", "trains", "ships", "planes", "books", "films",
    "games", "history", "religion", "politics", "trade", "farming", "fishing", "mining", "banks", "taxes", "rent",
    "houses", "cities", "rivers", "oceans", "mountains", "deserts", "forests", "stars", "energy", "oil", "water",
    "computers", "phones", "fashion",
]  # fmt: skip
# None begins like another, so that only questions of one form have text in common.
FORMS = (
    "Is it about {}?", "Does the text mention {}?", "Would an expert on {} read this?", "Are {} the main subject?",
    "Could this be filed under {}?",
)  # fmt: skip
TEMPERATURES = [0.5 + 0.05 * i for i in range(91)]


@dataclass(frozen=True, slots=True)
class Asked:
    """The log-probabilities of the options of one item, and which of them is right."""

    logprobs: tuple[float, ...]
    gold: int


def score(engine: Engine, request: ScoreRequest) -> Scores:
    engine.add_score(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Scored):
                return event.scores
    raise AssertionError("the request ended without scores")


def measure_cost(llm: LLM, num_forms: int) -> dict[str, Any]:
    writer = QuestionWriter(llm.tokenizer.encode)
    texts = [FORMS[i % num_forms].format(topic) for i, topic in enumerate(TOPICS)]
    written = [writer.write(Question(QuestionKind.PREDICATE, text)) for text in texts]
    branches = [Branch(tuple(llm.tokenizer.encode(one.text)), one.label_ids) for one in written]
    times: dict[str, list[float]] = {"prefill": [], "decisions": []}
    processor: dict[str, list[float]] = {"prefill": [], "decisions": []}
    for run in range(NUM_RUNS):
        for number, name in enumerate(times):
            # The first token differs, so that no run finds the pages of another.
            first = 100 + 1000 * num_forms + 2 * run + number
            prompt = (first, *(1000 + 7 * i for i in range(NUM_INPUT - 1)))
            request = ScoreRequest(name, prompt, ((5,),))
            if name == "decisions":
                request = score_request(name, prompt, branches)
            started, used = time.perf_counter(), time.process_time()
            scores = score(llm.engine, request)
            times[name].append(time.perf_counter() - started)
            processor[name].append(time.process_time() - used)
            assert scores.usage.cached_tokens == 0
    best = {name: min(values) for name, values in times.items()}
    return {
        "input_tokens": NUM_INPUT,
        "questions": len(branches),
        "forms": num_forms,
        "question_tokens": sum(len(branch.ids) for branch in branches),
        "question_rows": scores.usage.rows - NUM_INPUT,
        "prefill_s": round(best["prefill"], 4),
        "decisions_s": round(best["decisions"], 4),
        "ratio": round(best["decisions"] / best["prefill"], 3),
        "ratios": sorted(round(b / a, 3) for a, b in zip(*times.values(), strict=True)),
        # Of one thread, these do not depend on the load of the machine.
        "processor_ratios": sorted(round(b / a, 3) for a, b in zip(*processor.values(), strict=True)),
        "device": llm.engine.info.device,
    }


def read_items(data: Path, limit: int) -> list[tuple[str, Question, int]]:
    """Input, question and the index of the right option, from passages with yes/no questions and from quizzes."""
    items: list[tuple[str, Question, int]] = []
    for record in pack_records(data, "boolq")[:limit]:
        passage, _, question = str(record["q"]).rpartition("\nQuestion: ")
        asked = question.removesuffix("\nAnswer:").rstrip("?") + "?"
        is_yes = str(record["c"][int(record["g"])]).strip().lower() == "yes"
        items.append((passage, Question(QuestionKind.PREDICATE, asked), 0 if is_yes else 1))
    for name in ("sciq", "csqa"):
        for i, record in enumerate(pack_records(data, name)[: limit // 2]):
            asked = str(record["q"]).removeprefix("Question: ").removesuffix("\nAnswer:")
            options = [Option(str(choice).strip()) for choice in record["c"]]
            # Some sets list the right answer last.
            turn = i % len(options)
            question = Question(QuestionKind.CHOICE, "Which answer is right?", (*options[turn:], *options[:turn]))
            items.append((asked, question, (int(record["g"]) - turn) % len(options)))
    return items


def ask(llm: LLM, text: str, question: Question) -> tuple[float, ...]:
    written = QuestionWriter(llm.tokenizer.encode).write(question)
    prompt = tuple(llm.tokenizer.encode(write_input(text)))
    branch = tuple(llm.tokenizer.encode(written.text))
    request = ScoreRequest("item", prompt, (branch,), next_tokens=(written.label_ids,))
    return score(llm.engine, request).logprobs[0]


def error_of(asked: list[Asked], temperature: float) -> float:
    shares = [Calibration(temperature).probabilities(one.logprobs) for one in asked]
    hits = [share.index(max(share)) == one.gold for share, one in zip(shares, asked, strict=True)]
    return expected_calibration_error([max(share) for share in shares], hits)


def loss_of(asked: list[Asked], temperature: float) -> float:
    """Mean negative log-likelihood of the right options."""
    shares = (Calibration(temperature).probabilities(one.logprobs)[one.gold] for one in asked)
    return -statistics.fmean(math.log(max(share, 1e-12)) for share in shares)


def calibrate(llm: LLM, data: Path, limit: int) -> dict[str, Any]:
    asked = [Asked(ask(llm, text, question), gold) for text, question, gold in read_items(data, limit)]
    fitting, held_out = asked[::2], asked[1::2]
    temperature = min(TEMPERATURES, key=lambda value: loss_of(fitting, value))
    hits = [one.logprobs.index(max(one.logprobs)) == one.gold for one in held_out]
    return {
        "temperature": round(temperature, 2),
        "ece": round(error_of(held_out, temperature), 4),
        "ece_uncalibrated": round(error_of(held_out, 1.0), 4),
        "n": len(held_out),
        "accuracy": round(statistics.fmean(hits), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["cost", "calibrate"])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes torch's default")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--limit", type=int, default=400, help="yes/no items; as many multiple-choice items are added")
    parser.add_argument("--out", type=Path, help="folder of the report")
    args = parser.parse_args()
    load = LoadConfig(device=args.device, threads=args.threads)
    if args.command == "cost":
        llm = LLM(args.model, load, for_serving(EngineConfig(), load))
        results = [measure_cost(llm, num_forms) for num_forms in (1, len(FORMS))]
    else:
        results = [calibrate(LLM(args.model, load), args.data, args.limit)]
    for result in results:
        print(json.dumps({"model": args.model, **result}))
    if args.out is not None:
        hardware = torch.cuda.get_device_name() if results[0].get("device", "cpu") != "cpu" else "cpu"
        facts = {"benchmark": "decisions", **machine_facts(), "hardware": hardware}
        report = {**facts, "rows": [{"model": args.model, **result} for result in results]}
        args.out.mkdir(parents=True, exist_ok=True)
        name = f"decisions-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        (args.out / name).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
