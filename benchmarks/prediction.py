"""Predicted outputs: rounds of an answer that repeats a file, with and without a prediction that differs in one line.

    python -m benchmarks.prediction [--model coder-1.5b] [--cases copy queue string code] [--threads 1]

Every case asks for one changed line in a module of the standard library and for the whole file as the answer. The
prediction is the file before the change. The case `repeat` asks to repeat `queue`, of which one line was changed
before, and the answer has its first tokens already: a small model cannot edit a file, but it can repeat the beginning
of one. All answers are greedy, and the two answers of a case must be equal.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from quicksilver.core import DecodeParams, Delta, Request
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig
from quicksilver.evals.report import machine_facts
from quicksilver.llm import LLM


@dataclass(frozen=True, slots=True)
class Edit:
    """A request for one changed line of a module."""

    module: str
    instruction: str
    old: str
    new: str


# Modules of 304 to 326 lines, complete: a model continues a file that ends in the middle of a class.
EDITS = {
    "copy": Edit(
        "copy",
        "In _deepcopy_tuple, rename the variable a of the list comprehension to item.",
        "y = [deepcopy(a, memo) for a in x]",
        "y = [deepcopy(item, memo) for item in x]",
    ),
    "queue": Edit(
        "queue",
        "In the class Queue, change the default value of maxsize to 100.",
        "def __init__(self, maxsize=0):",
        "def __init__(self, maxsize=100):",
    ),
    "string": Edit(
        "string",
        "In Formatter.vformat, change the recursion depth from 2 to 3.",
        "self._vformat(format_string, args, kwargs, used_args, 2)",
        "self._vformat(format_string, args, kwargs, used_args, 3)",
    ),
    "code": Edit(
        "code",
        'In InteractiveConsole.__init__, change the default value of filename to "<shell>".',
        'def __init__(self, locals=None, filename="<console>"):',
        'def __init__(self, locals=None, filename="<shell>"):',
    ),
}
REPEAT = "repeat"
# Of the answer, in the prompt of `repeat`: without them nano begins another file.
GIVEN_TOKENS = 64
# Room for the code fence and a sentence beside the file.
EXTRA_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    num_lines: int
    prompt: tuple[int, ...]
    # The answer that follows the request, as far as it is known.
    wanted: tuple[int, ...]
    prediction: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Decoded:
    token_ids: tuple[int, ...]
    rounds: int
    forwards: int
    rows: int
    predicted_tokens: int


def changed_file(edit: Edit, num_lines: int | None = None) -> tuple[str, str]:
    """The first lines of the module, or all of them, before and after the change of one line."""
    lines = inspect.getsource(importlib.import_module(edit.module)).splitlines(keepends=True)[:num_lines]
    changed = [line.replace(edit.old, edit.new) for line in lines]
    assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 1
    return "".join(lines), "".join(changed)


def repeat_case(llm: LLM, num_lines: int) -> Case:
    """Cut between tokens of the whole file, so that the copy has the tokens of the original."""
    encode = llm.tokenizer.encode
    texts = changed_file(EDITS["queue"], num_lines)
    before, after = (tuple(encode(text)) for text in texts)
    asked = llm.chat_prompt(f"Repeat this file:\n```python\n{texts[1]}```")
    prompt = (*asked, *encode("```python\n"), *after[:GIVEN_TOKENS])
    rest = after[GIVEN_TOKENS:]
    return Case(REPEAT, num_lines, prompt, rest, before[GIVEN_TOKENS:], len(rest))


def edit_case(llm: LLM, name: str) -> Case:
    encode = llm.tokenizer.encode
    before, after = changed_file(EDITS[name])
    asked = f"```python\n{before}```\n\n{EDITS[name].instruction} Answer with the whole file in one code block."
    wanted = tuple(encode(f"```python\n{after}```"))
    prompt, max_tokens = tuple(llm.chat_prompt(asked)), len(wanted) + EXTRA_TOKENS
    return Case(name, before.count("\n"), prompt, wanted, tuple(encode(before)), max_tokens)


def decode(llm: LLM, case: Case, prediction: tuple[int, ...]) -> Decoded:
    engine: Engine = llm.engine
    params = DecodeParams(
        temperature=0.0,
        max_new_tokens=case.max_tokens,
        decoder=engine.info.default_decoder,
        stop_ids=() if case.name == REPEAT else llm.tokenizer.eos_ids,
    )
    deltas = list[Delta]()
    engine.add(Request("copy", case.prompt, params, prediction=prediction))
    while engine.has_work:
        deltas += [event for event in engine.step() if isinstance(event, Delta)]
    usage = deltas[-1].usage
    assert usage is not None
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    return Decoded(token_ids, usage.rounds, usage.forwards, usage.rows, usage.predicted)


def measure(llm: LLM, case: Case) -> dict[str, Any]:
    found = {"with": decode(llm, case, case.prediction), "without": decode(llm, case, ())}
    figures = {name: asdict(one) for name, one in found.items()}
    for each in figures.values():
        each["tokens"] = len(each.pop("token_ids"))
    return {
        "case": case.name,
        "lines": case.num_lines,
        "prompt_tokens": len(case.prompt),
        **figures,
        "is_same_text": found["with"].token_ids == found["without"].token_ids,
        "round_ratio": round(found["without"].rounds / found["with"].rounds, 2),
        "forward_ratio": round(found["without"].forwards / found["with"].forwards, 2),
        # Of the tokens of the answer. A model does not copy without errors.
        "copied_tokens": num_common(found["with"].token_ids, case.wanted),
        "wanted_tokens": len(case.wanted),
    }


def num_common(answer: Sequence[int], wanted: Sequence[int]) -> int:
    blocks = SequenceMatcher(None, answer, wanted, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--cases", nargs="+", choices=[REPEAT, *EDITS], default=list(EDITS))
    parser.add_argument("--lines", type=int, nargs="+", default=[50, 300], help="of the case repeat")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes torch's default")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    llm = LLM(args.model, LoadConfig(threads=args.threads))
    rows = []
    for name in args.cases:
        for case in [repeat_case(llm, num) for num in args.lines] if name == REPEAT else [edit_case(llm, name)]:
            rows.append(measure(llm, case))
            print(json.dumps(rows[-1]), flush=True)
    report = {**machine_facts(), "model": args.model, "device": llm.engine.info.device, "rows": rows}
    path = args.out / f"prediction-{args.model}-{report['date'][:10]}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
