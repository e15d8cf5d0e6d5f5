"""Fill in the middle on files of packages kept from training: Python and JavaScript, one line or a few.

`exact` asks for the very characters that stood there (trailing space aside), `similarity` for how near it came, and
`first_line` forgives what is written after the line. A middle begins where a cursor would stand: half of the single
lines at the end of their indentation (`exact_line`), half somewhere within (`exact_rest`).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import held_out_rows
from quicksilver.evals.task import Answer, Generate, Metrics, Task
from quicksilver.evals.writer import Writer

BEFORE_CHARS, AFTER_CHARS = 1000, 400
_PER_FILE = 2
_SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Gap:
    prefix: str
    middle: str
    suffix: str
    kind: str


def similarity(found: str, wanted: str) -> float:
    """1 for equal texts, 0 for texts with nothing in common."""
    return difflib.SequenceMatcher(None, found, wanted, autojunk=False).ratio()


def cut_gaps(text: str, name: str, num_lines: int) -> Iterator[Gap]:
    """Up to two gaps of `num_lines` lines; which ones depends on the file's name alone."""
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
        prefix, suffix = text[max(0, start - BEFORE_CHARS) : start], text[end : end + AFTER_CHARS]
        yield Gap(prefix, text[start:end], suffix, "rest" if is_within else "line")


def ask(gap: Gap, writer: Writer) -> Generate:
    room = 48 + len(writer.encode(gap.middle))
    prompt = writer.fim(gap.prefix, gap.suffix, room)
    return Generate(prompt.ids, room, prompt.stop, prompt.stop_ids, logit_bias=prompt.logit_bias)


def score(gap: Gap, answer: Answer) -> Metrics:
    # Weights that read "x =" rather than "x = " say the last space themselves (`text.edits.fim_lead`).
    text = answer.text.removeprefix(" ") if gap.prefix.endswith(" ") else answer.text
    found, wanted = text.rstrip(), gap.middle.rstrip()
    exact = float(found == wanted)
    metrics = {"exact": exact, "similarity": similarity(found, wanted)}
    if "\n" in gap.middle:
        return metrics
    first_line = text.partition("\n")[0].rstrip()
    return metrics | {f"exact_{gap.kind}": exact, "first_line": float(first_line == wanted)}


def _task(name: str, file: str, num_lines: int) -> Task[Gap]:
    def load(data: Path) -> Iterable[Gap]:
        rows = held_out_rows(data, file)
        return [gap for row in rows for gap in cut_gaps(str(row["t"]), f"{row['p']}/{row['f']}", num_lines)]

    return Task(name, "fim", ("exact", "similarity"), load, ask, score)


TASKS = (
    _task("fim_python", "code_python", 1),
    _task("fim_js", "code_js_ts", 1),
    _task("fim_python_lines", "code_python", 4),
)
