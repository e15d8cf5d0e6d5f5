from __future__ import annotations

import pytest

from quicksilver.editing.apply import Copy, merge
from quicksilver.editing.update_text import clean_update

_PYTHON = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
_GO = "package a\n\nfunc f() int {\n\tif x {\n\t\treturn 1\n\t}\n\treturn 2\n}\n\nfunc g() {}\n"


def test_spaces_become_the_tabs_of_the_file() -> None:
    update = "// ...\nfunc f() int {\n  if x {\n    return 3\n  }\n  return 2\n}\n// ..."
    assert merge(_GO, update) == [Copy(_GO.replace("return 1", "return 3"))]


def test_tabs_become_the_spaces_of_the_file() -> None:
    update = "class A:\n\t# ...\n\n\tdef g(self):\n\t\treturn 3\n"
    assert merge(_PYTHON, update) == [Copy(_PYTHON.replace("return 2", "return 3"))]


@pytest.mark.parametrize(
    ("original", "update"),
    [
        (_GO, "func f() int {\n\treturn 3\n}"),
        ("\ta\n    b\n", "        c"),
        (_GO, "\ta\n    b"),
        (_GO, "/*\n * a\n */"),
        ("a\nb\n", "\tc"),
    ],
)
def test_other_indentation_stays(original: str, update: str) -> None:
    assert clean_update(original, update) == update


def test_dots_in_brackets_are_a_marker_except_in_python() -> None:
    original = '{\n  "name": "a",\n  "version": "1.0.0",\n  "main": "x.js"\n}\n'
    update = '{\n  ...\n  "version": "1.0.1",\n  ...\n}'
    assert merge(original, update) == [Copy(original.replace("1.0.0", "1.0.1"))]
    assert clean_update(_PYTHON, "def f(self):\n    ...") == "def f(self):\n    ..."


def test_a_fence_in_a_file_with_fences_stays() -> None:
    assert clean_update("# A\n\n```sh\nls\n```\n", "```sh\npwd\n```") == "```sh\npwd\n```"
    docstring = f'"""Use:\n\n```\nA()\n```\n"""\n\n\n{_PYTHON}'
    assert clean_update(docstring, "```py\nx = 1\n```") == "x = 1"
