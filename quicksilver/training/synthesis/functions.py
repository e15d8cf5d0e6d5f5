"""Programming tasks from real code: a function's signature and docstring, to be completed, explained or tested, or
only the first line of its docstring.

These rows are prompts only. The trained model answers them itself; function bodies are never used as answers.
"""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow

_ASKS = (
    "Complete this function.\n\n```python\n{head}```",
    "Write the body of the following Python function.\n```python\n{head}```",
    "Finish this code:\n{head}",
    "Implement this in Python. Give only the code.\n\n{head}",
    "Please write this function and two asserts that test it.\n\n{head}",
    "Complete the function below. Reply with the whole function in a code block.\n\n```python\n{head}```",
)
_SAID_ASKS = (
    "Write a Python function `{call}`: {summary}",
    "Write a function in Python. {summary} It is called {name}. Reply with a code block only.",
    "{summary}\n\nGive one Python code block that defines `{call}`.",
    "I need a Python function named {name}. What it should do: {summary}",
)
_WHOLE_ASKS = (
    "What does this function do?\n\n```python\n{whole}\n```",
    "Add type hints to this function.\n\n```python\n{whole}\n```",
    "Rewrite this function so that it is easier to read.\n\n{whole}",
    "Write a unit test for this function.\n\n```python\n{whole}\n```",
    "Translate this function to JavaScript.\n\n```python\n{whole}\n```",
)
_MAX_CHARS = 900
_MIN_DOC = 25


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A documented function: signature with docstring, whole text, name, an example call, summary of its docstring."""

    head: str
    whole: str
    name: str
    call: str
    summary: str

    def request(self, rng: random.Random) -> str:
        """One of several requests about the function."""
        kind = rng.random()
        if kind < 0.25 and len(self.whole) <= _MAX_CHARS:
            return rng.choice(_WHOLE_ASKS).format(whole=self.whole)
        if kind < 0.55:
            return rng.choice(_SAID_ASKS).format(name=self.name, call=self.call, summary=self.summary)
        return rng.choice(_ASKS).format(head=self.head)


def function_rows(texts: Iterable[str], rng: random.Random) -> Iterator[ChatRow]:
    """Up to eight documented functions per file, each used in two requests."""
    for text in texts:
        found = list(_functions(text))
        for function in rng.sample(found, min(8, len(found))):
            for request in {function.request(rng): None, function.request(rng): None}:
                turns = (Message("user", request), Message("assistant", ""))
                yield ChatRow(turns, domain="code", is_prompt_only=True)


def _functions(text: str) -> Iterator[SourceFunction]:
    """Every documented function at the top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines(keepends=True)
    for node in tree.body:
        said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if not isinstance(node, ast.FunctionDef) or said is None or len(said) < _MIN_DOC:
            continue
        head = "".join(lines[node.lineno - 1 : node.body[0].end_lineno])
        whole = "".join(lines[node.lineno - 1 : node.end_lineno])
        if len(head) <= _MAX_CHARS:
            head = head if head.endswith("\n") else f"{head}\n"
            yield SourceFunction(head, whole.rstrip("\n"), node.name, _call(node), _summary(said))


def _call(node: ast.FunctionDef) -> str:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return f"{node.name}({', '.join(names)})"


def _summary(said: str) -> str:
    """A docstring's first paragraph on one line."""
    return " ".join(said.strip().split("\n\n")[0].split())
