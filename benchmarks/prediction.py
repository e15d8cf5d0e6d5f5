"""Predicted outputs: rounds of an answer that repeats a file, with and without a prediction that differs in one line.

    python -m benchmarks.prediction [--model nano] [--lines 50 300] [--threads 1] [--out benchmarks/results]

The chat message asks to repeat a file, and the answer has its first tokens already. The file is the standard library's
`queue` with one changed line, the prediction is `queue` as it is. Both answers are greedy, and they must be equal.
"""

from __future__ import annotations

import argparse
import inspect
import json
import queue
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from quicksilver.core import DecodeParams, Delta, Request
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig
from quicksilver.evals.report import machine_facts
from quicksilver.llm import LLM

OLD, NEW = "def __init__(self, maxsize=0):", "def __init__(self, maxsize=100):"
# Of the answer, in the prompt: without them nano begins another file.
GIVEN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CopiedFile:
    prompt: tuple[int, ...]
    # The rest of the file as the prompt shows it, and as the prediction has it.
    rest: tuple[int, ...]
    prediction: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    token_ids: tuple[int, ...]
    rounds: int
    forwards: int
    predicted_tokens: int


def copied_file(llm: LLM, num_lines: int) -> CopiedFile:
    """The first `num_lines` lines of the module, of which one is changed. Cut between tokens of the whole file, so that
    the copy has the tokens of the original."""
    encode = llm.tokenizer.encode
    lines = inspect.getsource(queue).splitlines(keepends=True)[:num_lines]
    changed = [line.replace(OLD, NEW) for line in lines]
    assert sum(a != b for a, b in zip(lines, changed, strict=True)) == 1
    before, after = (tuple(encode("".join(each))) for each in (lines, changed))
    asked = llm.chat_prompt(f"Repeat this file:\n```python\n{''.join(changed)}```")
    prompt = (*asked, *encode("```python\n"), *after[:GIVEN_TOKENS])
    return CopiedFile(prompt, after[GIVEN_TOKENS:], before[GIVEN_TOKENS:])


def decode(engine: Engine, prompt: tuple[int, ...], num_tokens: int, prediction: tuple[int, ...] = ()) -> Decoded:
    params = DecodeParams(temperature=0.0, max_new_tokens=num_tokens, decoder=engine.info.default_decoder)
    deltas = list[Delta]()
    engine.add(Request("copy", prompt, params, prediction=prediction))
    while engine.has_work:
        deltas += [event for event in engine.step() if isinstance(event, Delta)]
    usage = deltas[-1].usage
    assert usage is not None
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    return Decoded(token_ids, usage.rounds, usage.forwards, usage.predicted)


def measure(llm: LLM, num_lines: int) -> dict[str, Any]:
    file = copied_file(llm, num_lines)
    found = {
        "with": decode(llm.engine, file.prompt, len(file.rest), file.prediction),
        "without": decode(llm.engine, file.prompt, len(file.rest)),
    }
    matched = SequenceMatcher(None, found["with"].token_ids, file.rest, autojunk=False)
    figures = {name: asdict(one) for name, one in found.items()}
    for each in figures.values():
        each["tokens"] = len(each.pop("token_ids"))
    return {
        "lines": num_lines,
        "prompt_tokens": len(file.prompt),
        **figures,
        "is_same_text": found["with"].token_ids == found["without"].token_ids,
        "round_ratio": round(found["without"].rounds / found["with"].rounds, 2),
        "forward_ratio": round(found["without"].forwards / found["with"].forwards, 2),
        # A small model does not copy without errors.
        "copied_tokens": sum(block.size for block in matched.get_matching_blocks()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--lines", type=int, nargs="+", default=[50, 300])
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes torch's default")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    llm = LLM(args.model, LoadConfig(threads=args.threads))
    rows = [measure(llm, num_lines) for num_lines in args.lines]
    for row in rows:
        print(json.dumps(row))
    report = {**machine_facts(), "model": args.model, "device": llm.engine.info.device, "rows": rows}
    (args.out / f"prediction-{report['date'][:10]}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
