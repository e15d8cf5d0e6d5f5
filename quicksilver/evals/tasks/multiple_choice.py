"""Multiple choice by likelihood: the answer is the choice with the highest likelihood after the question.

`acc` uses the sum of log-probabilities. `acc_norm` divides it by the length in bytes, so that long choices are not
penalised. For WinoGrande each choice is inserted into the blank, and only the text after the blank is scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import Record, pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Likelihood, Metrics, Task


@dataclass(frozen=True, slots=True)
class MultipleChoiceItem:
    """`prompt`, then one of `choices`, then `ending`. `gold` is the index of the correct choice."""

    prompt: str
    choices: tuple[str, ...]
    gold: int
    ending: str = ""


def read_question(record: Record) -> MultipleChoiceItem:
    prompt = str(record["q"])
    if record["task"] == "sciq":
        prompt = f"Question: {prompt}\nAnswer:"
    return MultipleChoiceItem(prompt.rstrip(), tuple(str(choice).strip() for choice in record["c"]), int(record["g"]))


def read_blank(record: Record) -> MultipleChoiceItem:
    """A sentence with a blank. The text after the blank determines which name is correct."""
    doc = record["doc"]
    before, _, after = str(doc["sentence"]).partition("_")
    choices = (str(doc["option1"]), str(doc["option2"]))
    return MultipleChoiceItem(before.rstrip(), choices, int(doc["answer"]) - 1, after)


def ask(question: MultipleChoiceItem, writer: PromptBuilder) -> Likelihood:
    space = " " if question.prompt else ""
    choices = [writer.encode(space + choice) for choice in question.choices]
    if not question.ending:
        return Likelihood(writer.text(question.prompt), tuple(choices))
    ending = writer.encode(question.ending)
    continuations = tuple((*choice, *ending) for choice in choices)
    return Likelihood(writer.text(question.prompt), continuations, tuple(map(len, choices)))


def score(question: MultipleChoiceItem, answer: Answer) -> Metrics:
    sums = [sum(part) for part in answer.logprobs]
    acc = float(_likeliest(sums) == question.gold)
    if question.ending:
        return {"acc": acc}
    lengths = [max(len(choice.encode()), 1) for choice in question.choices]
    normed = [value / length for value, length in zip(sums, lengths, strict=True)]
    return {"acc": acc, "acc_norm": float(_likeliest(normed) == question.gold)}


def _likeliest(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _task(name: str, headline: str, limit: int) -> Task[MultipleChoiceItem]:
    read = read_blank if name == "winogrande" else read_question

    def load(data: Path) -> Iterable[MultipleChoiceItem]:
        return [read(record) for record in pack_records(data, name)]

    return Task(name, "multiple_choice", (headline,), load, ask, score, limit)


TASKS = (
    _task("hellaswag", "acc_norm", 500),
    _task("arc_easy", "acc", 570),
    _task("arc_challenge", "acc_norm", 299),
    _task("piqa", "acc", 500),
    _task("sciq", "acc", 500),
    _task("openbookqa", "acc_norm", 500),
    _task("winogrande", "acc", 500),
    _task("boolq", "acc", 300),
    _task("csqa", "acc", 500),
)
