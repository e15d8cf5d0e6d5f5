"""HumanEval and MBPP: the model writes a function and its unit tests run in the sandbox.

The request is a chat message. The first fenced block of the answer is the program, or the whole answer if there is no
fence. If the answer is only a function body, it is appended to the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.data import pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.sandbox import passes
from quicksilver.evals.task import Answer, Generate, Metrics, Task

_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    request: str
    # Code that the program may use: the imports and signature of the prompt, or a set-up.
    head: str
    entry_point: str
    checks: str


def load_humaneval(data: Path) -> Iterable[Problem]:
    return [
        Problem(
            f"Complete this Python function. Answer with the whole function in one code block.\n\n```python\n"
            f"{record['prompt'].rstrip()}\n```",
            record["prompt"],
            record["entry_point"],
            f"{record['test']}\ncheck({record['entry_point']})",
        )
        for record in pack_records(data, "humaneval")
    ]


def load_mbpp(data: Path) -> Iterable[Problem]:
    problems = []
    for record in pack_records(data, "mbpp"):
        tests = "\n".join(record["test_list"]).replace("\r\n", "\n")
        called = re.search(r"(\w+)\s*\(", tests.removeprefix("assert").lstrip(" ("))
        request = (
            f"{record['text']}\n\nYour code must pass these tests:\n\n{tests}\n\nAnswer with one Python code block."
        )
        setup = str(record["test_setup_code"]).replace("\r\n", "\n")
        problems.append(Problem(request, "", called[1] if called else "", f"{setup}\n{tests}"))
    return problems


def program_of(problem: Problem, text: str) -> str:
    """Extract a program that defines the entry point from the answer."""
    fenced = _FENCED.search(text)
    code = fenced[1] if fenced else text
    if re.search(rf"^\s*def\s+{re.escape(problem.entry_point)}\b", code, re.MULTILINE) or not problem.head:
        imports = [line for line in problem.head.splitlines() if re.match(r"(?:from|import)\s", line)]
        return "\n".join([*imports, code])
    return problem.head + code


def ask(problem: Problem, writer: PromptBuilder) -> Generate:
    prompt = writer.chat(problem.request)
    return Generate(prompt.ids, 400, prompt.stop, prompt.stop_ids)


def score(problem: Problem, answer: Answer) -> Metrics:
    return {"pass": float(passes(f"{program_of(problem, answer.text)}\n\n{problem.checks}"))}


TASKS = (
    Task("humaneval", "code", ("pass",), load_humaneval, ask, score, 164),
    Task("mbpp", "code", ("pass",), load_mbpp, ask, score, 100),
)
