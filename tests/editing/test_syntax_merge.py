"""Merging by definitions: what the snippet shows is replaced, and nothing else changes."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from benchmarks.apply_cases import Case, cases
from quicksilver.editing.apply import Copy, merge
from quicksilver.editing.merge_parts import LineEdit
from quicksilver.editing.outline import MAX_CHARS
from quicksilver.editing.syntax_merge import merge_by_syntax

CLASS = """\
import os

# A counter.
class Counter:
    total = 0

    def add(self, amount):
        self.total += amount

    @property
    def value(self):
        return self.total

    def reset(self):
        self.total = 0


def main():
    counter = Counter()
    counter.add(1)
    print(counter.value)
"""


def merged(original: str, update: str) -> str:
    """The merge, which must need no model."""
    pieces = merge(original, update)
    assert all(isinstance(piece, Copy) for piece in pieces), pieces
    return "".join(piece.text for piece in pieces if isinstance(piece, Copy))


def test_methods_after_a_rewritten_method_are_kept() -> None:
    update = """\
class Counter:
    # ... existing code ...

    def add(self, amount):
        if amount < 0:
            raise ValueError(amount)
        self.total += amount

    # ... existing code ..."""
    guard = "        if amount < 0:\n            raise ValueError(amount)\n"
    expected = CLASS.replace("        self.total += amount\n", guard + "        self.total += amount\n")
    assert merged(CLASS, update) == expected


def test_a_method_shown_without_its_class_is_indented() -> None:
    assert merged(CLASS, "def reset(self):\n    self.total = -1\n") == CLASS.replace(
        "    def reset(self):\n        self.total = 0", "    def reset(self):\n        self.total = -1"
    )


def test_decorators_and_comments_that_the_snippet_omits_are_kept() -> None:
    update = "class Counter:\n    # ... existing code ...\n    def value(self):\n        return float(self.total)\n"
    assert merged(CLASS, update) == CLASS.replace("return self.total\n", "return float(self.total)\n")


def test_a_new_method_is_inserted_after_its_neighbour() -> None:
    update = """\
class Counter:
    # ... existing code ...

    def add(self, amount):
        # ... existing code ...

    def subtract(self, amount):
        self.total -= amount

    # ... existing code ..."""
    new = "\n    def subtract(self, amount):\n        self.total -= amount\n"
    assert merged(CLASS, update) == CLASS.replace("self.total += amount\n", "self.total += amount\n" + new)


def test_a_definition_between_two_elided_neighbours_is_removed() -> None:
    update = """\
class Counter:
    # ... existing code ...

    def add(self, amount):
        # ... existing code ...

    def reset(self):
        # ... existing code ...
"""
    removed = "    @property\n    def value(self):\n        return self.total\n\n"
    assert merged(CLASS, update) == CLASS.replace(removed, "")


def test_two_rewritten_neighbours_do_not_remove_what_is_between_them() -> None:
    update = """\
class Counter:
    # ... existing code ...

    def add(self, amount):
        self.total = self.total + amount

    def reset(self):
        self.total = 1

    # ... existing code ..."""
    result = merged(CLASS, update)
    assert "def value(self):\n        return self.total\n" in result
    assert "self.total = self.total + amount" in result
    assert "self.total = 1" in result


def test_a_changed_signature_with_an_elided_body() -> None:
    update = "# ...\ndef main(argv):\n    # ... existing code ...\n"
    assert merged(CLASS, update) == CLASS.replace("def main():", "def main(argv):")


def test_imports_are_added_after_their_neighbour_and_only_once() -> None:
    update = "import os\nimport sys\n# ... existing code ...\n"
    assert merged(CLASS, update) == CLASS.replace("import os\n", "import os\nimport sys\n")
    assert merged(CLASS, "import os\n# ... existing code ...\n") == CLASS


def test_line_ends_and_trailing_space_of_untouched_lines_are_kept() -> None:
    original = CLASS.replace("\n", "\r\n").replace("self.total = 0\r\n\r\n\r\n", "self.total = 0  \r\n\r\n\r\n")
    update = "class Counter:\n    # ...\n    def add(self, amount):\n        pass\n    # ...\n"
    result = merged(original, update)
    assert result == original.replace("        self.total += amount\r\n", "        pass\r\n")


def test_a_file_without_a_final_newline_stays_so() -> None:
    assert not merged(CLASS.rstrip("\n"), "# ...\ndef main():\n    pass").endswith("\n")


def test_an_elided_part_of_an_unknown_definition_is_not_guessed() -> None:
    assert merge_by_syntax(CLASS.split("\n"), ["def unknown():", "    # ... existing code ...", "    return 1"]) is None


def test_directives_in_the_first_column_do_not_change_the_indentation() -> None:
    body = "    int f()\n    {\n#if FAST\n        return 1;\n#else\n        return 2;\n#endif\n    }\n"
    original = "class A\n{\n" + body + "\n    int g()\n    {\n        return 3;\n    }\n}\n"
    update = "class A\n{\n    // ...\n\n" + body.replace("return 2", "return 4") + "\n    // ...\n}\n"
    assert merged(original, update) == original.replace("return 2", "return 4")


def test_a_very_long_file_is_not_parsed() -> None:
    assert merge_by_syntax(["x" * (MAX_CHARS + 1), "def f():", "    pass"], ["def f():", "    return 1"]) is None


def test_plain_text_has_no_outline() -> None:
    assert merge_by_syntax(["Dear reader,", "", "thank you."], ["Dear writer,"]) is None


# One small file per language, an update, and the only text that may change.
EXAMPLES = json.loads((Path(__file__).parent / "merge_examples.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["language"])
def test_only_the_shown_definition_changes(example: dict[str, str]) -> None:
    expected = example["original"].replace(example["old"], example["new"])
    assert merged(example["original"], example["update"]) == expected


MODULES = ("bisect", "calendar", "cmd", "dis", "fractions", "heapq", "queue", "shlex", "string", "textwrap")


def _standard_library() -> list[Case]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [case for name in MODULES for case in cases((folder / f"{name}.py").read_text(), "python", 0)]


@pytest.mark.parametrize("case", _standard_library(), ids=lambda case: case.kind)
def test_cases_of_the_standard_library_are_exact(case: Case) -> None:
    assert merged(case.original, case.update) == case.expected


THREE = """\
def a(x):
    y = x + 1
    return y


def b(x):
    z = x * 2
    return z


def c(x):
    w = x**3
    return w
"""
ELIDED = "def {}(x):\n    # ... existing code ..."


def test_code_between_two_elided_neighbours_of_a_new_function_is_kept() -> None:
    new = "def new(q):\n    return q"
    update = "\n\n\n".join((ELIDED.format("a"), new, ELIDED.format("c")))
    assert merged(THREE, update) == THREE.replace("    return y\n", f"    return y\n\n\n{new}\n")


def test_code_between_two_elided_neighbours_of_new_lines_is_kept() -> None:
    update = "\n\n\n".join((ELIDED.format("a"), "LIMIT = 3", ELIDED.format("c")))
    assert merged(THREE, update) == THREE.replace("    return y\n", "    return y\n\n\nLIMIT = 3\n")


@pytest.mark.parametrize(("first", "last"), [("def a(x):\n    return 7", None), (None, "def c(x):\n    return 7")])
def test_code_between_a_rewritten_function_and_an_elided_one_is_kept(first: str | None, last: str | None) -> None:
    update = "\n\n\n".join((first or ELIDED.format("a"), last or ELIDED.format("c")))
    name, body = ("a", "    y = x + 1\n    return y\n") if first else ("c", "    w = x**3\n    return w\n")
    assert merged(THREE, update) == THREE.replace(f"def {name}(x):\n{body}", f"def {name}(x):\n    return 7\n")


def test_code_between_two_elided_neighbours_is_removed() -> None:
    update = "\n\n\n".join((ELIDED.format("a"), ELIDED.format("c")))
    assert merged(THREE, update) == THREE.replace("def b(x):\n    z = x * 2\n    return z\n\n\n", "")


def test_a_merge_by_syntax_that_loses_code_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = [LineEdit(1, 7, ("    return 7",))]
    monkeypatch.setattr("quicksilver.editing.apply.merge_by_syntax", lambda *_: edits)
    pieces = merge(THREE, "def a(x):\n    return 7\n\n# ... existing code ...")
    text = "".join(piece.text if isinstance(piece, Copy) else piece.original for piece in pieces)
    assert THREE[THREE.index("def b") :] in text


def test_decorators_over_several_lines_are_kept() -> None:
    original = '@option(\n    "--name",\n)\ndef f(name):\n    """Old."""\n    return name\n\n\ndef g():\n    return 1\n'
    update = '# Prints it.\ndef f(name):\n    """New."""\n    return name\n\n# ... existing code ...'
    assert merged(original, update) == "# Prints it.\n" + original.replace("Old.", "New.")


def test_components_of_tsx_are_definitions() -> None:
    original = """\
import * as React from 'react';

export const Title = ({ text }: { text: string }) => {
  return (
    <h1 className="title">{text}</h1>
  );
};

export const Page = () => {
  return (
    <Title text="one" />
  );
};
"""
    update = """\
// ... existing code ...

export const Page = () => {
  return (
    <Title text="two" />
  );
};"""
    assert merged(original, update) == original.replace('"one"', '"two"')


def test_of_several_extensions_the_one_with_the_shown_method_is_changed() -> None:
    original = """\
import Foundation

extension Point {
  func first() -> Int {
    return 1
  }
}

extension Point {
  func second() -> Int {
    let value = 2
    return value
  }
}
"""
    update = """\
extension Point {
  // ... existing code ...

  func second() -> Int {
    let value = 3
    return value
  }

  // ... existing code ...
}"""
    assert merged(original, update) == original.replace("value = 2", "value = 3")


def test_a_body_below_a_header_over_several_lines_is_merged() -> None:
    original = CLASS.replace("def add(self, amount):", "def add(\n            self,\n            amount):")
    update = """\
class Counter:
    # ...

    def add(
            self,
            amount):
        # ... existing code ...
        self.total += amount
        self.count += 1

    # ..."""
    expected = original.replace("self.total += amount\n", "self.total += amount\n        self.count += 1\n")
    assert merged(original, update) == expected
