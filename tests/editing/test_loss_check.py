"""Lines that a merge may not lose."""

from __future__ import annotations

import pytest

from quicksilver.editing.apply import Copy, Rewrite, checked_reply, merge
from quicksilver.editing.loss_check import adds_errors, lost_lines

_FILE = """import os


def first(path):
    data = os.stat(path)
    return data.st_size


def second(path):
    name = path.strip()
    return os.path.exists(name)
"""


def test_an_unchanged_file_lost_nothing() -> None:
    assert lost_lines(_FILE, "# ...\n", _FILE) == []


def test_a_missing_definition_that_the_update_does_not_show_is_lost() -> None:
    merged = _FILE[: _FILE.index("def second")]
    assert "return os.path.exists(name)" in lost_lines(_FILE, "def first(path):\n    return 1\n", merged)


def test_a_definition_that_the_update_shows_whole_may_be_replaced() -> None:
    update = "def first(path):\n    return 1\n"
    merged = _FILE.replace("    data = os.stat(path)\n    return data.st_size\n", "    return 1\n")
    assert lost_lines(_FILE, update, merged) == []


def test_a_line_between_two_shown_lines_may_be_removed() -> None:
    update = "# ... existing code ...\ndef second(path):\n    return os.path.exists(name)\n# ... existing code ..."
    assert lost_lines(_FILE, update, _FILE.replace("    name = path.strip()\n", "")) == []


def test_a_removed_line_with_a_marker_in_its_place_is_lost() -> None:
    update = "def second(path):\n    # ... existing code ...\n    return os.path.exists(name)\n"
    merged = _FILE.replace("    name = path.strip()\n", "")
    assert lost_lines(_FILE, update, merged) == ["name = path.strip()"]


def test_a_changed_line_is_not_lost() -> None:
    merged = _FILE.replace("os.stat(path)", "os.stat(path, follow=False)")
    assert lost_lines(_FILE, "    data = os.stat(path, follow=False)", merged) == []


def test_a_line_that_moved_to_another_definition_is_lost() -> None:
    update = "def first(path):\n    # ...\n\ndef added(path):\n    return data.st_size\n"
    merged = _FILE.replace("    return data.st_size\n", "\n\ndef added(path):\n    return data.st_size\n")
    assert lost_lines(_FILE, update, merged) == ["return data.st_size"]


def test_a_renamed_definition_keeps_its_lines() -> None:
    merged = _FILE.replace("def second(path)", "def second_name(path)")
    assert lost_lines(_FILE, "def second_name(path):\n    name = path.strip()\n    # ...", merged) == []


def test_an_update_without_markers_does_not_replace_the_file() -> None:
    """Only an update that repeats most of the file is the whole new file."""
    assert lost_lines(_FILE, "def third():\n    return 3", "Hello\n")
    assert "import os" in lost_lines(_FILE, "def second(path):\n    return 1", "def second(path):\n    return 1\n")
    without_import = _FILE.replace("import os\n", "")
    assert lost_lines(_FILE, without_import, without_import) == ["import os"]
    for header in ("import sys\n", "# A file.\n"):
        assert lost_lines(_FILE, header + without_import, header + without_import) == []
    assert lost_lines(f"import re\n{_FILE}", _FILE, _FILE) == []


_THREE = f"{_FILE}\n\ndef third(path):\n    return path\n"
_SECOND = _FILE[_FILE.index("\n\ndef second") :]
_WITHOUT_SECOND = _THREE.replace(_SECOND, "")


def test_a_definition_between_two_elided_neighbours_may_be_removed() -> None:
    update = "def first(path):\n    # ...\n\n\ndef third(path):\n    # ..."
    assert lost_lines(_THREE, update, _WITHOUT_SECOND) == []


@pytest.mark.parametrize(
    "update",
    [
        "def first(path):\n    return 0\n\n\ndef third(path):\n    # ...",
        "def first(path):\n    # ...\n\n\ndef third(path):\n    return 0",
        "def first(path):\n    # ...\n\n# ...\n\ndef third(path):\n    # ...",
        "def first(path):\n    # ...\n\n\ndef new():\n    return 0\n\n\ndef third(path):\n    # ...",
    ],
)
def test_a_definition_between_other_neighbours_is_lost(update: str) -> None:
    assert "name = path.strip()" in lost_lines(_THREE, update, _WITHOUT_SECOND)


def test_the_header_of_an_elided_definition_may_be_replaced() -> None:
    update = "def second(*, name: str | None = None) -> bool:\n    # ..."
    assert lost_lines(_FILE, update, _FILE.replace("def second(path):", update.split("\n")[0])) == []


def test_a_copied_line_does_not_show_the_position_of_the_old_one() -> None:
    original = "head of first\n\nthe shared line\n\nlabel of second\nhead of second\n"
    update = "head of first\n# ...\n\nhead of new\n\nthe shared line\n\nhead of second\n# ..."
    merged = original.replace("head of first\n", "head of first\n\nhead of new\n\nthe shared line\n")
    assert lost_lines(original, update, merged) == []
    assert lost_lines(original, update, merged.replace("label of second\n", "")) == ["label of second"]


def test_a_decorator_above_a_shown_header_is_lost() -> None:
    original = _FILE.replace("def second", "@cached\ndef second")
    update = "    return data.st_size\n\n\ndef second(path):\n    name = path.strip()\n    # ..."
    assert lost_lines(original, update, _FILE) == ["@cached"]


def test_an_update_with_syntax_errors_does_not_replace_a_definition() -> None:
    update = "def second(path:\n    return (1\n"
    merged = _FILE.replace("    name = path.strip()\n    return os.path.exists(name)\n", "    return (1\n")
    assert "name = path.strip()" in lost_lines(_FILE, update, merged)


def test_a_removed_definition_may_have_the_decorator_of_the_next_one() -> None:
    original = "\n\n".join(f"@cached\ndef {name}():\n    return '{name}'" for name in ("one", "two", "three")) + "\n"
    merged = original.replace("@cached\ndef two():\n    return 'two'\n\n", "")
    assert lost_lines(original, "def one():\n    # ...\n\ndef three():\n    # ...", merged) == []


def test_text_in_no_known_language_is_compared_by_lines() -> None:
    assert lost_lines("one\ntwo\nthree\n", "one\n", "one\nthree\n") == ["two"]


@pytest.mark.parametrize("answer", ["", "import os\n"])
def test_a_model_answer_that_loses_code_is_refused(answer: str) -> None:
    assert checked_reply(Rewrite(_FILE, "x = 1"), answer) is None


def test_a_model_answer_that_keeps_a_marker_is_refused() -> None:
    marker = "# ... existing code ..."
    update = f"{marker}\nx = 1"
    assert checked_reply(Rewrite(_FILE, update), f"{_FILE}{marker}\nx = 1\n") is None
    original = f"{_FILE}{marker}\n"
    assert checked_reply(Rewrite(original, update), f"{original}x = 1\n") == f"{original}x = 1\n"


def test_a_model_answer_that_keeps_the_code_is_used() -> None:
    assert checked_reply(Rewrite(_FILE, "x = 1"), f"```python\n{_FILE}x = 1\n```") == _FILE + "x = 1\n"


def test_a_merge_by_lines_does_not_drop_a_line_at_a_blank_edge() -> None:
    original = "Notes.\n\nThe first line.\nA second line that stays.\n\nThe end.\n"
    pieces = merge(original, "The first line.\nThe added line.\n\n# ... unchanged ...")
    text = "".join(piece.text if isinstance(piece, Copy) else piece.original for piece in pieces)
    assert "A second line that stays." in text


def test_a_result_with_new_syntax_errors_is_noticed() -> None:
    original = '{\n  "a": 1,\n  "b": 2\n}\n'
    update = '{\n  // ...\n  "b": 3\n}'
    assert adds_errors(original, update, original.replace('"b": 2', '"b": 2,,'))
    assert not adds_errors(original, update, original.replace('"b": 2', '"b": 3'))
    assert not adds_errors("no code\n", "...", "((\n")
