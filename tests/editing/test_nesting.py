"""Which texts may be parsed."""

from __future__ import annotations

import pytest

from quicksilver.editing.nesting import is_parseable

HOSTILE = {
    "quotes": "> " * 41,
    "quotes without space": ">" * 41,
    "lists": "- " * 41,
    "mixed": "> - 1. " * 20,
    "after text": "text " + "> - " * 30,
    "keys": "\n".join(" " * n + "a:" for n in range(101)),
    "brackets": "([{" * 40,
    "string templates": '"${' * 300,
    "brackets over lines": "(\n" * 101,
}
USUAL = {
    "empty": "",
    "rules": "-" * 200 + "\n" + "=" * 200 + "\n" + "* " * 20,
    "list": "- one\n" * 1000,
    "numbers": "\n".join(f"{n}. item" for n in range(1000)),
    "closed brackets": "f(a[{}])\n" * 1000,
    "indented": "\n".join(" " * (n % 30) + "a" for n in range(1000)),
    "brackets in strings": "write(\"\\x1b[31m\", '{')\n" * 1000,
    "lost closings": ")" * 1000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_deep_nesting_is_not_parsed(text: str) -> None:
    assert not is_parseable(text.split("\n"))


@pytest.mark.parametrize("text", USUAL.values(), ids=USUAL)
def test_usual_text_is_parsed(text: str) -> None:
    assert is_parseable(text.split("\n"))
