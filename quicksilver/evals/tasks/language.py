"""Language modelling: perplexity of running text in windows, and the last word of LAMBADA passages.

Perplexity is that of the causal rows, with one forward per window of 1,024 tokens. The first token of a window is
given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from quicksilver.evals.data import held_out_records, pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Likelihood, Metrics, Task

WINDOW = 1024
_CODE_FILES = 40


@dataclass(slots=True)
class RunningText:
    """A text that is encoded once for all of its windows."""

    text: str
    _ids: tuple[int, ...] = ()

    def ids(self, writer: PromptBuilder) -> tuple[int, ...]:
        self._ids = self._ids or writer.encode(self.text)
        return self._ids


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens `[index * WINDOW, (index + 1) * WINDOW)` of a text."""

    text: RunningText
    index: int


def load_wikitext(data: Path) -> Iterable[Window]:
    text = str(pack_records(data, "wikitext2_test")[0]["text"])
    return _windows(text)


def load_code(data: Path) -> Iterable[Window]:
    """Files of held-out packages, joined into one text."""
    files = islice(held_out_records(data, "code_python"), _CODE_FILES)
    text = "\n\n".join(str(record["t"]) for record in files)
    return _windows(text)


def _windows(text: str) -> Iterable[Window]:
    """An upper bound of the windows: one per `WINDOW` characters. A limit takes the first ones."""
    shared = RunningText(text)
    return (Window(shared, index) for index in range(-(-len(text) // WINDOW)))


def ask_window(window: Window, writer: PromptBuilder) -> Likelihood:
    start, end = window.index * WINDOW, (window.index + 1) * WINDOW
    ids = window.text.ids(writer)[start:end]
    return Likelihood(ids[:1], (ids[1:],))


def score_window(window: Window, answer: Answer) -> Metrics:
    return {"nll": -sum(answer.logprobs[0]), "tokens": len(answer.logprobs[0])}


def perplexity(scores: Sequence[Metrics]) -> dict[str, float]:
    num_tokens = sum(metrics["tokens"] for metrics in scores)
    return {"ppl": math.exp(sum(metrics["nll"] for metrics in scores) / num_tokens), "tokens": num_tokens}


@dataclass(frozen=True, slots=True)
class Passage:
    context: str
    word: str


def load_lambada(data: Path) -> Iterable[Passage]:
    return [Passage(str(record["ctx"]), str(record["cont"])) for record in pack_records(data, "lambada")]


def ask_word(passage: Passage, writer: PromptBuilder) -> Generate:
    """Generate exactly as many tokens as the word has."""
    return Generate(writer.text(passage.context), max_new_tokens=len(writer.encode(passage.word)))


def score_word(passage: Passage, answer: Answer) -> Metrics:
    return {"acc": float(answer.text == passage.word)}


def _perplexity_task(name: str, load: Callable[[Path], Iterable[Window]]) -> Task[Window]:
    task = Task(name, "text", ("ppl",), load, ask_window, score_window, limit=8)
    return replace(task, summarise=perplexity, is_lower_better=True, takes_first=True)


TASKS = (
    _perplexity_task("wikitext2", load_wikitext),
    _perplexity_task("python_text", load_code),
    Task("lambada", "text", ("acc",), load_lambada, ask_word, score_word, 300),
)
