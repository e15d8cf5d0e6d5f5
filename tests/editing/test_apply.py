from __future__ import annotations

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.editing.apply import (
    Copy,
    MergedPart,
    Rewrite,
    merge,
    rewrite_messages,
    rewrite_reply,
)
from quicksilver.editing.splice import split_update

_PYTHON = """\
import os

def first(x):
    return x + 1


def second(y):
    if y:
        print(y)
    return y


def third():
    return 3
"""
_SCRIPT = """\
const a = 1;

function first(x) {
  if (x) {
    return x;
  }
  return 0;
}

function second(y) {
  return y;
}
"""


def settled(pieces: list[MergedPart]) -> str:
    assert all(isinstance(piece, Copy) for piece in pieces), pieces
    return "".join(piece.text for piece in pieces if isinstance(piece, Copy))


def test_changed_line_between_known_ones_is_replaced() -> None:
    update = "# ... existing code ...\ndef second(y):\n    if y:\n        log(y)\n    return y\n# ... existing code ..."
    assert settled(merge(_PYTHON, update)) == _PYTHON.replace("print(y)", "log(y)")


def test_two_segments_and_a_new_signature_are_applied() -> None:
    update = (
        "import os\nimport sys\n\n# ... existing code ...\n\ndef second(y, z):\n    if y:\n        print(y)\n"
        "        print(z)\n    return y\n"
    )
    expected = _PYTHON.replace("import os\n", "import os\nimport sys\n").replace("second(y)", "second(y, z)")
    assert settled(merge(_PYTHON, update)) == expected.replace("print(y)\n", "print(y)\n        print(z)\n")


def test_new_code_at_an_end_of_the_file_goes_there() -> None:
    below = "# ... existing code ...\n\n\ndef fourth():\n    return 4\n"
    assert settled(merge(_PYTHON, below)) == _PYTHON + "\n\ndef fourth():\n    return 4\n"
    above = "#!/usr/bin/env python\n# ... existing code ..."
    assert settled(merge(_PYTHON, above)) == "#!/usr/bin/env python\n" + _PYTHON


def test_lines_left_out_between_known_ones_are_deleted() -> None:
    update = "// ... existing code ...\nfunction first(x) {\n  return 0;\n}\n// ... existing code ..."
    expected = _SCRIPT.replace("  if (x) {\n    return x;\n  }\n", "")
    assert settled(merge(_SCRIPT, update)) == expected


def test_whole_new_file_replaces_the_old_one() -> None:
    new = _SCRIPT.replace("return 0;", "return -1;").replace("const a = 1;", "const a = 2;\nconst b = 3;")
    assert settled(merge(_SCRIPT, new)) == new


def test_a_missing_marker_drops_no_code() -> None:
    update = "def second(y):\n    if y:\n        log(y)\n    return y\n\n\ndef third():\n# ... existing code ..."
    assert settled(merge(_PYTHON, update)) == _PYTHON.replace("print(y)", "log(y)")
    update = "# ... existing code ...\n    return x + 1\n\n\ndef second(z):\n    if y:\n        print(y)"
    assert settled(merge(_PYTHON, update)) == _PYTHON.replace("second(y)", "second(z)")


def test_snippet_without_markers_finds_its_place() -> None:
    update = "function second(y) {\n  trace(y);\n  return y;\n}"
    assert settled(merge(_SCRIPT, update)) == _SCRIPT.replace("  return y;", "  trace(y);\n  return y;")


@pytest.mark.parametrize("update", ["", "\n\n", "// ... existing code ...", "# ...\n\n# ..."])
def test_an_empty_update_changes_nothing(update: str) -> None:
    assert settled(merge(_SCRIPT, update)) == _SCRIPT


def test_untouched_lines_keep_every_byte() -> None:
    original = "a = 1  \r\n\tb = 2\r\n\r\nlonely = '\u2028\x0c'\r\ncafe = 3\r\nlast"
    update = "# ...\nlonely = '\u2028\x0c'\nnew = 4\ncafe = 3\n# ..."
    assert settled(merge(original, update)) == original.replace("cafe", "new = 4\r\ncafe")


def test_file_without_a_last_line_break_stays_without() -> None:
    assert settled(merge("one = 1\ntwo = 2", "# ...\ntwo = 2\nthree = 3")) == "one = 1\ntwo = 2\nthree = 3"


@pytest.mark.parametrize(
    ("original", "update"),
    [
        (_SCRIPT * 2, "// ...\nfunction first(x) {\n  if (!x) {\n    return x;\n// ..."),
        (_SCRIPT, "// ... existing code ...\nconst b = 2;\n// ... existing code ..."),
        (_SCRIPT, "nothing of the kind"),
    ],
)
def test_an_ambiguous_position_is_left_to_the_model(original: str, update: str) -> None:
    pieces = merge(original, update)
    assert any(isinstance(piece, Rewrite) for piece in pieces)
    parts = [piece.text if isinstance(piece, Copy) else piece.original for piece in pieces]
    assert "".join(parts) == original


def test_only_the_ambiguous_span_is_left_to_the_model() -> None:
    original = _SCRIPT + "\nfunction third(z) {\n  const q = z * 2;\n  return q;\n}\n"
    update = "const a = 5;\n\nfunction first(x) {\n// ... existing code ...\nfunction third(z) {\n  return z * 4;\n}\n"
    first, doubt = merge(original, update)
    assert isinstance(first, Copy)
    assert first.text.startswith("const a = 5;\n\nfunction first(x) {\n  if (x) {")
    assert isinstance(doubt, Rewrite)
    assert doubt.original.endswith("function third(z) {\n  const q = z * 2;\n  return q;\n}\n")
    assert doubt.update == "function third(z) {\n  return z * 4;\n}"


def test_a_new_definition_between_markers_is_inserted_before_the_next_known_one() -> None:
    update = "# ...\ndef fresh():\n    pass\n# ...\ndef third():\n    check()\n    return 3\n"
    at = _PYTHON.index("def third")
    new = "def fresh():\n    pass\n\n\ndef third():\n    check()\n    return 3\n"
    assert settled(merge(_PYTHON, update)) == _PYTHON[:at] + new


def test_a_new_definition_between_markers_alone_is_appended() -> None:
    update = "// ... existing code ...\nfunction fresh() {\n  return 9;\n}\n// ... existing code ..."
    assert settled(merge(_SCRIPT, update)) == _SCRIPT + "\nfunction fresh() {\n  return 9;\n}\n"


def test_a_definition_that_is_shown_whole_replaces_the_old_one() -> None:
    original = "def f(a):\n    first = a + 1\n\n    second = first + 2\n    return second\n\n\ndef g():\n    pass\n"
    body = "def f(a):\n    first = a + 1\n    second = first + 3\n    return second * 2\n"
    assert settled(merge(original, f"# ...\n{body}\n# ...")) == body + "\n\ndef g():\n    pass\n"


def test_a_common_line_above_new_code_does_not_make_it_ambiguous() -> None:
    original = "".join(f"@decorated\ndef number_{n}():\n    return {n}\n\n\n" for n in range(9))
    update = "# ...\n@decorated\ndef brand_new(x):\n    yield x\n"
    assert settled(merge(original, update)) == original + "@decorated\ndef brand_new(x):\n    yield x\n"
    assert any(isinstance(piece, Rewrite) for piece in merge(original, "# ...\n@decorated\n"))


def test_a_merge_that_would_unbalance_brackets_is_left_to_the_model() -> None:
    update = "// ...\nfunction second(y) {\n  if (y) {\n  return y;\n}\n// ..."
    assert any(isinstance(piece, Rewrite) for piece in merge(_SCRIPT, update))


@pytest.mark.parametrize(
    "marker",
    [
        "// ... existing code ...",
        "# ... existing code ...",
        "    # ...",
        "/* ... */",
        "<!-- ... existing code ... -->",
        "{/* ... existing code ... */}",
        "-- ... rest of the query ...",
        "; ... unchanged",
        "// … other methods …",
        "# ... (previous code remains the same)",
        "// rest of the code remains unchanged...",
        "... existing code ...",
        "(* ... *)",
    ],
)
def test_markers_of_many_languages_are_known(marker: str) -> None:
    segments = split_update(f"a\n{marker}\nb")
    assert [segment.lines for segment in segments] == [("a",), ("b",)]
    assert [(s.is_open_above, s.is_open_below) for s in segments] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    "line",
    ["...", "    ...", "  ...rest,", "f(...)", "# and so on ...", "# a comment", "x = y  # ...", "// " + "." * 500],
)
def test_code_and_comments_are_no_markers(line: str) -> None:
    assert [segment.lines for segment in split_update(f"a\n{line}\nb")] == [("a", line, "b")]


def snippet_of(old: list[str], new: list[str], context: int) -> str:
    """The update a careful author writes: changed lines with `context` lines around, markers for the rest."""
    out: list[str] = []
    end = 0
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        if group[0][3] > 0:
            out.append("# ... existing code ...")
        end = group[-1][4]
        out += new[group[0][3] : end]
    return "\n".join([*out, *(["# ... existing code ..."] if end < len(new) else [])])


_EDITS = st.lists(
    st.tuples(st.integers(1, 28), st.sampled_from(["delete", "change", "insert"])),
    min_size=1,
    max_size=4,
    unique_by=lambda edit: edit[0],
)


@settings(max_examples=60)
@given(_EDITS, st.integers(2, 4))
def test_a_careful_update_gives_the_new_file_or_an_ambiguous_span(edits: list[tuple[int, str]], context: int) -> None:
    old = [f"{'  ' * (n % 3)}line_{n} = value_{n}()" for n in range(30)]
    new = list(old)
    for at, kind in sorted(edits, reverse=True):
        fresh = [f"fresh_{at} = other_{at}"] if kind != "delete" else []
        new[at : at + (kind != "insert")] = fresh
    pieces = merge("\n".join(old) + "\n", snippet_of(old, new, context))
    if all(isinstance(piece, Copy) for piece in pieces):
        assert settled(pieces) == "\n".join(new) + "\n"
    else:
        assert "".join(p.original if isinstance(p, Rewrite) else "" for p in pieces) in "\n".join(old) + "\n"


def test_careful_updates_are_mostly_certain() -> None:
    old = [f"line_{n} = value_{n}()" for n in range(40)]
    outcomes = []
    for at in range(2, 38):
        new = [*old[:at], f"changed_{at}()", *old[at + 1 :]]
        pieces = merge("\n".join(old), snippet_of(old, new, 1))
        outcomes.append(pieces == [Copy("\n".join(new))])
    assert all(outcomes)


_MODULE = "import os\n\n\ndef first():\n    return 1\n\n\ndef second():\n    return 2\n"


def test_a_byte_order_mark_is_kept() -> None:
    expected = "\ufeff" + _MODULE.replace("return 2", "return 3")
    for update in (expected, expected[1:], "import os\n# ...\ndef second():\n    return 3"):
        assert "".join(part.text for part in merge("\ufeff" + _MODULE, update) if isinstance(part, Copy)) == expected


@pytest.mark.parametrize("opening", ["```", "```python", "\n```py"])
def test_a_fence_around_the_update_is_not_inserted(opening: str) -> None:
    update = f"{opening}\n# ...\n\ndef second():\n    return 3\n```\n"
    assert merge(_MODULE, update) == [Copy(_MODULE.replace("return 2", "return 3"))]


def test_an_empty_file_becomes_the_update() -> None:
    assert merge("", "# ... existing code ...\nx = 1\n") == [Copy("x = 1\n")]
    assert merge("\n", "") == [Copy("\n")]


_BIG = "def big():\n" + "".join(f"    total += work({i})\n" for i in range(12)) + "    return total\n"


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("import tiny\n\n\n", ""),
        ("", "\n\ntiny()\n"),
        ("", "\n\ndef tiny():\n    return 1\n"),
        ("# tiny\n", "\n\nif tiny:\n    return 1\n"),
    ],
)
def test_a_function_that_is_most_of_its_file_is_not_the_whole_file(above: str, below: str) -> None:
    changed = _BIG.replace("work(3)", "rest(3)")
    assert merge(above + _BIG + below, changed) == [Copy(above + changed + below)]


def test_a_brace_at_the_end_is_not_the_end_of_the_file() -> None:
    big = "func big() int {\n" + "".join(f"\ttotal += work({i})\n" for i in range(12)) + "\treturn total\n}\n"
    original = f"package a\n\n{big}\nfunc tiny() int {{\n\treturn 1\n}}\n"
    assert merge(original, big.replace("work(3)", "rest(3)")) == [Copy(original.replace("work(3)", "rest(3)"))]


def test_the_last_lines_of_another_function_are_not_the_end_of_the_file() -> None:
    tiny = "\n\ndef tiny():\n    total += work(11)\n    return total\n"
    changed = _BIG.replace("work(3)", "rest(3)")
    assert merge(_BIG + tiny, changed) == [Copy(changed + tiny)]


def test_a_whole_new_file_may_leave_out_definitions() -> None:
    parts = [_BIG.replace("big", name).replace("work", name) for name in ("one", "two", "three")]
    assert merge("\n\n".join(parts), "\n\n".join(parts[::2])) == [Copy("\n\n".join(parts[::2]))]


def test_blank_lines_at_the_end_of_a_whole_file_are_kept() -> None:
    assert merge(f"{_BIG}\n\n", _BIG) == [Copy(f"{_BIG}\n\n")]


@pytest.mark.parametrize(
    "marker",
    [
        "...",
        "…",
        "# rest unchanged",
        "# (the rest of the file remains the same)",
        "# rest of code is unchanged.",
        "# [existing code]",
        "# existing methods unchanged",
        "/* rest of the code unchanged */",
        "<!-- rest of file as before -->",
    ],
)
def test_markers_without_dots_and_dots_alone_stand_for_code(marker: str) -> None:
    update = f"{marker}\n\ndef second():\n    return 3\n\n{marker}"
    original = f"{_MODULE}\n\n{_BIG}"
    assert merge(original, update) == [Copy(original.replace("return 2", "return 3"))]


@pytest.mark.parametrize("line", ["# rest of the day", "# the existing code path", "# unchanged", "# same as before"])
def test_other_comments_are_no_markers(line: str) -> None:
    update = f"# ...\n\ndef second():\n    {line}\n    return 3\n"
    assert merge(_MODULE, update) == [Copy(_MODULE.replace("    return 2", f"    {line}\n    return 3"))]


def test_a_line_of_the_file_is_no_marker() -> None:
    original = _MODULE.replace("    return 2", "    # rest unchanged\n    return 2")
    update = "# ...\n\ndef second():\n    # rest unchanged\n    return 3\n"
    assert merge(original, update) == [Copy(original.replace("return 2", "return 3"))]


def test_dots_in_a_block_of_python_are_code() -> None:
    update = "# ...\n\ndef second():\n    ...\n"
    assert merge(_MODULE, update) == [Copy(_MODULE.replace("return 2", "..."))]


def test_imports_at_another_indentation_are_added_once() -> None:
    update = "    import os\n    import sys\n\n    # ..."
    assert merge(_MODULE, update) == [Copy(_MODULE.replace("import os\n", "import os\nimport sys\n"))]


def test_a_new_function_above_known_lines_does_not_repeat_them() -> None:
    guard = 'if __name__ == "__main__":\n    first()\n'
    new = "def third():\n    return 3\n\n\n"
    assert merge(f"{_MODULE}\n\n{guard}", f"# ...\n\n{new}{guard}") == [Copy(f"{_MODULE}\n\n{new}{guard}")]


def test_hostile_sizes_do_not_hang() -> None:
    original = "}\n" * 20_000 + "same line here\n" * 8 + "x = 1\n" * 5_000
    update = "same line here\n" * 2_000 + "}\n" * 5_000
    parts = [p.text if isinstance(p, Copy) else p.original for p in merge(original, update)]
    assert len("".join(parts)) > 0


@pytest.mark.parametrize("answer", ["x = 2", "x = 2\n", "```\nx = 2\n```", "```py\nx = 2\n```\n"])
def test_the_models_answer_replaces_its_part(answer: str) -> None:
    assert rewrite_reply(Rewrite("x = 1\n", "x = 2"), answer) == "x = 2\n"
    assert rewrite_reply(Rewrite("x = 1", "x = 2"), answer) == "x = 2"


def test_the_models_answer_gets_the_line_breaks_of_its_part() -> None:
    assert rewrite_reply(Rewrite("\nx = 1\n\n\n", "x = 2"), "x = 2\ny = 3\n") == "\nx = 2\ny = 3\n\n\n"
    assert rewrite_reply(Rewrite("x = 1\r\ny\r\n", "x = 2"), "x = 2\ny\r\nz\n") == "x = 2\r\ny\r\nz\r\n"


def test_the_model_gets_original_and_update() -> None:
    (message,) = rewrite_messages(Rewrite("old code", "new code"))
    assert "old code" in message.content
    assert "new code" in message.content


def test_an_update_that_does_not_parse_is_merged_by_lines_at_the_indentation_of_the_file() -> None:
    arguments = "".join(f"            {name},\n" for name in ("one", "two", "three"))
    text = f"    int f(int x) {{\n        return sum(\n{arguments}            x);\n    }}\n"
    original = f"public class A {{\n{text}\n    int g() {{\n        return 1;\n    }}\n}}\n"
    update = "int f(int x) {\n        // ...\n        one,\n        second,\n        three,\n        // ...\n}"
    assert merge(original, update) == [Copy(original.replace("two", "second"))]
