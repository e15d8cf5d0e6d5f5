"""Compaction: a long agent log becomes a small object with its files, decisions and open points.

The log is made by rule, so what must survive is known. The schema allows only paths that occur in the log; the answer
is checked by looking for them. An agent would continue with the object in place of the log.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from examples.measure import Chat, compare, connect, parser

FILES = ("src/cart.py", "src/tax.py", "src/mail.py", "tests/test_cart.py", "docs/setup.md", "src/stock.py")
FINDINGS = (
    "the total ignores the discount",
    "the tax is rounded twice",
    "a mail is sent before the order is stored",
    "the stock can become negative",
)
PATH = re.compile(r"\b[\w/]+\.(?:py|md)\b")


def make_log(num_entries: int, seed: int = 0) -> str:
    """An agent's log: tool calls with their output, findings and decisions."""
    rng = random.Random(seed)
    entries = []
    for i in range(num_entries):
        path = rng.choice(FILES[:4])
        kinds = (
            f"[{i}] read {path}: {rng.randint(20, 400)} lines, {rng.randint(1, 30)} functions",
            f"[{i}] run tests: {rng.randint(1, 40)} passed, {rng.randint(0, 3)} failed in {path}",
            f"[{i}] finding in {path}: {rng.choice(FINDINGS)}",
            f"[{i}] decision: change {path}, keep its interface",
        )
        entries.append(rng.choice(kinds))
    return "\n".join(entries)


def schema(paths: list[str]) -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": 80}
    properties = {
        "files": {"type": "array", "items": {"enum": paths}, "minItems": 1, "maxItems": 6},
        "decisions": {"type": "array", "items": text, "minItems": 1, "maxItems": 3},
        "open_points": {"type": "array", "items": text, "minItems": 1, "maxItems": 3},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def compact(chat: Chat, log: str) -> dict[str, list[str]]:
    paths = sorted(set(PATH.findall(log)))
    message = chat.ask(
        f"Log of an agent:\n{log}\n\nSummarise the log as JSON: the files it changed, its decisions, its open points.",
        max_tokens=400,
        response_format={"type": "json_schema", "json_schema": {"name": "state", "schema": schema(paths)}},
    )
    found: dict[str, list[str]] = json.loads(message.content)
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--entries", type=int, default=100, help="lines of the log; nano has a context for about 250")
    arguments = options.parse_args()
    log = make_log(arguments.entries)
    chat = connect(arguments)
    state = compare(chat, lambda chat: compact(chat, log))
    print(json.dumps(state, indent=2))
    paths, size = set(PATH.findall(log)), chat.replies[0].usage
    print(f"{size.prompt_tokens} tokens became {size.completion_tokens}")
    print(f"files kept: {len(paths & set(state['files']))} of {len(paths)}")


if __name__ == "__main__":
    main()
