from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.editing.edit_request import EditRequest, Snippet, parse_edit
from quicksilver.editing.prompts import edit_reply
from quicksilver.errors import InvalidRequest

_SNIPPETS = """\
<|recently_viewed_code_snippets|>
<|recently_viewed_code_snippet|>
code_snippet_file_path: src/a.ts
const a = 1
<|/recently_viewed_code_snippet|>

<|recently_viewed_code_snippet|>
code_snippet_file_path: diagnostics
line 3: unused
<|/recently_viewed_code_snippet|>

<|/recently_viewed_code_snippets|>
"""
_HISTORY = """\
<|edit_diff_history|>
--- a/solver.py
+++ b/solver.py
@@ -6,1 +6,1 @@
--- old comment
+new

// User accepted prediction:
--- a/solver.py
+++ b/solver.py
@@ -9,0 +9,1 @@
+x

<|/edit_diff_history|>
"""
_FILE = """\
<|current_file_content|>
current_file_path: solver.py
import os

<|code_to_edit|>
def f(a<|cursor|>):
    return a
<|/code_to_edit|>

print(f(1))
<|/current_file_content|>
"""
_PARSED = EditRequest(
    path="solver.py",
    before="import os\n\n",
    region="def f(a):\n    return a",
    after="\n\nprint(f(1))",
    cursor=7,
    snippets=(Snippet("src/a.ts", "const a = 1"), Snippet("diagnostics", "line 3: unused")),
    history=(
        "--- a/solver.py\n+++ b/solver.py\n@@ -6,1 +6,1 @@\n--- old comment\n+new",
        "// User accepted prediction:\n--- a/solver.py\n+++ b/solver.py\n@@ -9,0 +9,1 @@\n+x",
    ),
)


@pytest.mark.parametrize(
    "prompt",
    [
        f"{_SNIPPETS}\n{_FILE}\n{_HISTORY}",
        f"{_HISTORY}{_FILE}{_SNIPPETS}",
        f"{_SNIPPETS}{_FILE}{_HISTORY}<|!@#IS_NEXT_EDIT!@#|>",
        f"{_SNIPPETS}{_HISTORY}{_FILE}\nThe developer was working on the section; update it.",
    ],
)
def test_sections_are_read_in_any_order(prompt: str) -> None:
    assert parse_edit(prompt) == _PARSED


def wrap(file: str) -> str:
    return f"<|current_file_content|>\n{file}<|/current_file_content|>"


def test_closing_tag_at_the_end_of_a_line_adds_no_line_break() -> None:
    """Zed writes the tags directly after the text of the region."""
    request = parse_edit(
        "<|current_file_content|>\na\n<|code_to_edit|>\nb<|cursor|><|/code_to_edit|>\n\nc<|/current_file_content|>"
    )
    assert (request.before, request.region, request.after, request.cursor) == ("a\n", "b", "\nc", 1)


def test_region_beside_the_file_is_found_in_it() -> None:
    prompt = (
        "<|recently_viewed_code_snippets|>\n<|/recently_viewed_code_snippets|>\n<|edit_diff_history|>\n"
        '<|/edit_diff_history|>\n<|current_file_content|>\nx = 1\ndef greet(name):\n    print("hi")\ny = 2\n'
        '<|/current_file_content|>\n<|code_to_edit|>\ndef greet(name):\n    print("hi")<|cursor|>\n<|/code_to_edit|>'
    )
    request = parse_edit(prompt)
    assert (request.before, request.after) == ("x = 1\n", "\ny = 2")
    assert (request.region, request.cursor) == ('def greet(name):\n    print("hi")', 32)
    assert (request.path, request.snippets, request.history) == ("", (), ())


def test_region_that_the_file_does_not_have_follows_it() -> None:
    request = parse_edit(
        "<|current_file_content|>\nold\n<|/current_file_content|>\n<|code_to_edit|>\nnew\n<|/code_to_edit|>"
    )
    assert (request.before, request.region, request.after, request.cursor) == ("old", "new", "", None)


@pytest.mark.parametrize(
    ("file", "region", "around"),
    [
        ("a\nb", "", ("a\nb", "")),
        ("a\n<|cursor|>\nb", "", ("a\n", "\nb")),
        ("a\nx\nb\nx<|cursor|>\nc", "x", ("a\nx\nb\n", "\nc")),
        ("a\nx\nb\nx\nc<|cursor|>", "x", ("a\n", "\nb\nx\nc")),
        ("a\n<|cursor|>x\nb", "x", ("a\n", "\nb")),
    ],
)
def test_the_cursor_in_the_file_is_the_place_of_a_region_beside_it(
    file: str, region: str, around: tuple[str, str]
) -> None:
    prompt = f"<|current_file_content|>\n{file}\n<|/current_file_content|>\n<|code_to_edit|>\n{region}<|/code_to_edit|>"
    request = parse_edit(prompt)
    assert (request.region, (request.before, request.after)) == (region, around)


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_line_breaks_next_to_the_tags_are_not_part_of_the_text(line_break: str) -> None:
    """An editor writes the tags with the line breaks of the file, or with its own."""
    content = "a\r\n<|code_to_edit|>@b<|cursor|>\r\nc\r\n<|/code_to_edit|>@d\r\n".replace("@", line_break)
    request = parse_edit(
        f"<|current_file_content|>{line_break}current_file_path: p.py{line_break}{content}<|/current_file_content|>"
    )
    assert (request.path, request.before, request.region, request.after) == ("p.py", "a\r\n", "b\r\nc", "\r\nd")
    assert edit_reply(request, "b\r\nc2") == "```\nb\r\nc2\n```"


def test_lines_of_git_and_patch_belong_to_the_diff_below_them() -> None:
    diffs = (
        "Index: a.py\n===================\n--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-a\n+b",
        "diff --git a/b.py b/b.py\nindex 1234567..89abcde 100644\n--- a/b.py\n+++ b/b.py\n@@ -1,1 +1,1 @@\n-c\n+d",
    )
    history = "\n\n".join(diffs)
    assert parse_edit(f"<|edit_diff_history|>\n{history}\n<|/edit_diff_history|>\n{_FILE}").history == diffs


def test_area_around_the_region_is_the_file_when_it_has_the_tags() -> None:
    request = parse_edit(
        "<|current_file_content|>\ncurrent_file_path: p.md\nwhole\n<|/current_file_content|>\n"
        "<|area_around_code_to_edit|>\na\n<|code_to_edit|>\nb\n<|/code_to_edit|>\nc\n<|/area_around_code_to_edit|>"
    )
    assert (request.path, request.before, request.region, request.after) == ("p.md", "a\n", "b", "\nc")


def test_numbered_lines_lose_their_numbers() -> None:
    request = parse_edit(wrap("1|a\n<|code_to_edit|>\n2|  b<|cursor|>\n3|\n4|c|d\n<|/code_to_edit|>\n5|e\n"))
    assert (request.before, request.region, request.after) == ("a\n", "  b\n\nc|d", "\ne")
    assert request.cursor == 3
    spaced = parse_edit("<|code_to_edit|>\n9 | x\n10 |   y\n<|/code_to_edit|>")
    assert spaced.region == "x\n  y"


@pytest.mark.parametrize("region", ["4 | flags", "1 | one\n2 | two"])
@pytest.mark.parametrize(("above", "below"), [("x = (", ")"), ("8 | flags", "8 | flags")])
def test_numbers_of_code_stay_if_the_lines_around_it_do_not_continue_them(region: str, above: str, below: str) -> None:
    request = parse_edit(wrap(f"{above}\n<|code_to_edit|>\n{region}\n<|/code_to_edit|>\n{below}\n"))
    assert (request.before, request.region, request.after) == (f"{above}\n", region, f"\n{below}")


@pytest.mark.parametrize("region", ["1|a\n3|b", "1|a\nb", "x|1", f"{'9' * 5000}|a"])
def test_lines_that_only_look_numbered_stay_as_they_are(region: str) -> None:
    assert parse_edit(f"<|code_to_edit|>\n{region}\n<|/code_to_edit|>").region == region


def test_tags_left_open_reach_to_the_end() -> None:
    request = parse_edit("<|current_file_content|>\na\n<|code_to_edit|>\nb<|cursor|>c")
    assert (request.before, request.region, request.cursor) == ("a\n", "bc", 1)


def test_cursor_outside_the_region_is_taken_out() -> None:
    request = parse_edit(
        "<|current_file_content|>\na<|cursor|>\n<|code_to_edit|>\nb\n<|/code_to_edit|>\n<|/current_file_content|>"
    )
    assert (request.before, request.cursor) == ("a\n", None)


def test_a_file_that_contains_the_tags_keeps_them() -> None:
    file = "<|code_to_edit|>\nTAG = '<|/code_to_edit|>'\n<|cursor|>\n<|/code_to_edit|>\n"
    assert parse_edit(wrap(file)).region == "TAG = '<|/code_to_edit|>'\n"


@pytest.mark.parametrize("prompt", ["", "please edit", "<|current_file_content|>\nx\n<|/current_file_content|>"])
def test_message_without_a_region_names_the_field(prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="code_to_edit") as caught:
        parse_edit(prompt)
    assert caught.value.param == "messages"


def exchanges(shared: Path) -> Iterator[tuple[str, str]]:
    """Prompt and reply of every recorded exchange."""
    for path in sorted((shared / "data/wire/edit-exchanges").glob("*.ndjson")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        bodies = [json.loads(base64.b64decode(record["body_b64"])) for record in records if "body_b64" in record]
        for request, reply in zip(bodies[::2], bodies[1::2], strict=True):
            yield request["messages"][0]["content"], reply["choices"][0]["message"]["content"]


def test_recorded_requests_are_read_exactly(shared: Path) -> None:
    prompts = [prompt for prompt, _ in exchanges(shared)]
    assert len(prompts) == 20
    for prompt in prompts:
        request = parse_edit(prompt)
        marked = request.region[: request.cursor] + "<|cursor|>" + request.region[request.cursor :]
        assert f"<|code_to_edit|>\n{marked}\n<|/code_to_edit|>" in prompt
        assert request.path in prompt
        assert all(diff in prompt for diff in request.history)


def test_recorded_replies_are_already_in_our_form(shared: Path) -> None:
    for prompt, reply in exchanges(shared):
        request = parse_edit(prompt)
        assert edit_reply(request, reply) == reply
        assert edit_reply(request, reply.removeprefix("```\n").removesuffix("\n```")) == reply
