"""Programming tasks from real code: a function's head and docstring, to be completed, explained or tested.

Prompts only: whoever is trained answers them in its own words. Bodies are never shown as answers.
"""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterable, Iterator

from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow

_ASKS = (
    "Complete this function.\n\n```python\n{head}```",
    "Write the body of the following Python function.\n```python\n{head}```",
    "Finish this code:\n{head}",
    "Implement this in Python. Give only the code.\n\n{head}",
    "Please write this function and two asserts that test it.\n\n{head}",
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


def function_rows(texts: Iterable[str], rng: random.Random) -> Iterator[ChatRow]:
    """Up to eight rows a file, each about one of its documented functions."""
    for text in texts:
        found = list(_functions(text))
        for head, whole in rng.sample(found, min(8, len(found))):
            is_whole = rng.random() < 0.35 and len(whole) <= _MAX_CHARS
            ask = rng.choice(_WHOLE_ASKS).format(whole=whole) if is_whole else rng.choice(_ASKS).format(head=head)
            yield ChatRow((Message("user", ask), Message("assistant", "")), domain="code", is_prompt_only=True)


def _functions(text: str) -> Iterator[tuple[str, str]]:
    """(Signature and docstring, the whole function) of every documented function at the top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines(keepends=True)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or len(ast.get_docstring(node) or "") < _MIN_DOC:
            continue
        head = "".join(lines[node.lineno - 1 : node.body[0].end_lineno])
        whole = "".join(lines[node.lineno - 1 : node.end_lineno])
        if len(head) <= _MAX_CHARS:
            yield head if head.endswith("\n") else f"{head}\n", whole.rstrip("\n")
