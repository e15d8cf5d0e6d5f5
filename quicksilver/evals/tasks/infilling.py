"""HumanEval infilling: a line or a random span of a solution is removed and generated again; unit tests decide.

`pass` runs the tests, `exact` compares with the removed text, `longer` and `shorter` give the share of length errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.sandbox import passes
from quicksilver.evals.task import Answer, Generate, Metrics, Task
from quicksilver.evals.tasks.fim import similarity


@dataclass(frozen=True, slots=True)
class Hole:
    prefix: str
    suffix: str
    middle: str
    # Test program, appended to the solution. It raises if the solution is wrong.
    checks: str


def ask(hole: Hole, writer: PromptBuilder) -> Generate:
    room = 48 + len(writer.encode(hole.middle))
    prompt = writer.fim(hole.prefix, hole.suffix, room)
    return Generate(prompt.ids, room, prompt.stop, prompt.stop_ids, logit_bias=prompt.logit_bias, lead=prompt.lead)


def score(hole: Hole, answer: Answer) -> Metrics:
    found, wanted = answer.text.rstrip(), hole.middle.rstrip()
    solution = hole.prefix + _closed(answer.text, hole) + hole.suffix
    return {
        "pass": float(passes(f"{solution}\n{hole.checks}")),
        "exact": float(found == wanted),
        "similarity": similarity(found, wanted),
        "longer": float(len(found) > 1.5 * len(wanted)),
        "shorter": float(len(found) < 0.5 * len(wanted)),
    }


def _closed(text: str, hole: Hole) -> str:
    """Append the line break that was removed together with a whole line."""
    return text.rstrip("\n") + "\n" if hole.middle.endswith("\n") else text


def _task(name: str, limit: int) -> Task[Hole]:
    def load(data: Path) -> Iterable[Hole]:
        return [
            Hole(
                str(record["prompt"]),
                str(record["suffix"]),
                str(record["canonical_solution"]),
                f"{record['test']}\ncheck({record['entry_point']})",
            )
            for record in pack_records(data, name)
        ]

    return Task(name, "fim", ("pass", "exact"), load, ask, score, limit)


TASKS = (_task("humaneval_infill_single", 100), _task("humaneval_infill_randomlight", 100))
