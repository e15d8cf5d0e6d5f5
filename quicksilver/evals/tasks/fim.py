"""Fill in the middle on files of held-out packages: Python and JavaScript, one line or a few.

`exact` compares all characters except trailing white space; `similarity` measures closeness. A single line is requested
with a line break as stop string, as editors do. `exact_unstopped` is measured without the stop string, so the model
must produce the end-of-sequence token. Half of the single-line gaps start after the indentation (`exact_line`), half
within the line (`exact_rest`).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import held_out_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task

_PER_FILE = 2
_SHORTEST = 6
# Larger than the number of held-out gaps, so every gap is used: differences of a few percent matter here.
_ALL_GAPS = 1000


@dataclass(frozen=True, slots=True)
class Around:
    """Characters of the file before and after the gap that are sent."""

    before: int
    after: int


# Each context size has its own tasks, named after the number of characters before the gap.
CONTEXTS = (Around(1000, 400), Around(1800, 800), Around(4000, 1600), Around(6000, 2400))
# A typical context: some editors send a thousand tokens, others send hundreds of lines.
USUAL = Around(4000, 1600)


@dataclass(frozen=True, slots=True)
class Gap:
    prefix: str
    middle: str
    suffix: str
    kind: str


def similarity(found: str, wanted: str) -> float:
    """1 for equal texts, 0 for texts with nothing in common."""
    return difflib.SequenceMatcher(None, found, wanted, autojunk=False).ratio()


def cut_gaps(text: str, name: str, num_lines: int, around: Around = USUAL) -> Iterator[Gap]:
    """Yield up to two gaps of `num_lines` lines. The random choice is seeded with the file name and `num_lines`."""
    rng = random.Random(f"{name}/{num_lines}")
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    starts = [i for i in range(4, len(lines) - num_lines) if len(lines[i].strip()) >= _SHORTEST]
    for first in rng.sample(starts, min(_PER_FILE, len(starts))):
        line = lines[first]
        indent = len(line) - len(line.lstrip())
        is_within = num_lines == 1 and rng.random() < 0.5
        column = rng.randint(indent + 1, len(line.rstrip()) - 3) if is_within else indent
        start = sum(len(above) + 1 for above in lines[:first]) + column
        end = start - column + len("\n".join(lines[first : first + num_lines]))
        prefix, suffix = text[max(0, start - around.before) : start], text[end : end + around.after]
        yield Gap(prefix, text[start:end], suffix, "rest" if is_within else "line")


def ask(gap: Gap, writer: PromptBuilder) -> Generate:
    room = 48 + len(writer.encode(gap.middle))
    prompt = writer.fim(gap.prefix, gap.suffix, room)
    return Generate(prompt.ids, room, prompt.stop, prompt.stop_ids, logit_bias=prompt.logit_bias, lead=prompt.lead)


def score(gap: Gap, answer: Answer) -> Metrics:
    is_single = "\n" not in gap.middle
    # A stop string only truncates the answer, so one answer gives both metrics.
    found, wanted = (answer.text.partition("\n")[0] if is_single else answer.text).rstrip(), gap.middle.rstrip()
    exact = float(found == wanted)
    metrics = {"exact": exact, "similarity": similarity(found, wanted)}
    if not is_single:
        return metrics
    return metrics | {f"exact_{gap.kind}": exact, "exact_unstopped": float(answer.text.rstrip() == wanted)}


def _task(name: str, file: str, num_lines: int, around: Around = USUAL) -> Task[Gap]:
    def load(data: Path) -> Iterable[Gap]:
        records = held_out_records(data, file)
        return [
            gap
            for record in records
            for gap in cut_gaps(str(record["t"]), f"{record['p']}/{record['f']}", num_lines, around)
        ]

    headlines = ("exact", "exact_unstopped") if num_lines == 1 else ("exact", "similarity")
    return Task(name, "fim", headlines, load, ask, score, _ALL_GAPS if num_lines == 1 else 100)


# The same gaps with more or less context.
BY_CONTEXT = tuple(
    _task(f"{name}_{around.before}", file, 1, around)
    for around in CONTEXTS
    for name, file in (("fim_python", "code_python"), ("fim_js", "code_js_ts"))
)
TASKS = (
    _task("fim_python", "code_python", 1),
    _task("fim_js", "code_js_ts", 1),
    _task("fim_python_lines", "code_python", 4, CONTEXTS[0]),
    *BY_CONTEXT,
)
