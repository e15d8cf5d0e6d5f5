from __future__ import annotations

import random
from typing import Any

from quicksilver.editing.prompts import EditRequest, parse_edit
from quicksilver.training.synthesis.commits import (
    commit_rows,
    end_of_change,
    new_words,
    request_of,
    with_moved_cursor,
    without_context,
)

RECORD: dict[str, Any] = {
    "kind": "next",
    "path": "shop/cart.py",
    "history": ["--- shop/cart.py\n+++ shop/cart.py\n@@ -1,1 +1,1 @@\n-def total(items):\n+def total(goods):\n"],
    "snippets": [{"path": "shop/tax.py", "text": "RATE = 0.2"}],
    "before": "def total(goods):",
    "region": "    amount = 0\n    for item in items:\n        amount += item.price",
    "after": "    return amount",
    "cursor": [1, 4],
    "target": "    amount = 0\n    for item in goods:\n        amount += item.price",
}


def message(record: dict[str, Any]) -> str:
    """A record as an editor writes it."""
    lines = record["region"].split("\n")
    row, column = record["cursor"]
    lines[row] = f"{lines[row][:column]}<|cursor|>{lines[row][column:]}"
    snippets = "".join(
        f"<|recently_viewed_code_snippet|>\ncode_snippet_file_path: {s['path']}\n{s['text']}\n"
        "<|/recently_viewed_code_snippet|>\n\n"
        for s in record["snippets"]
    )
    region = "\n".join(lines)
    history = "\n\n".join(record["history"])
    return (
        f"<|recently_viewed_code_snippets|>\n{snippets}<|/recently_viewed_code_snippets|>\n\n<|current_file_content|>\n"
        f"current_file_path: {record['path']}\n{record['before']}\n<|code_to_edit|>\n{region}\n<|/code_to_edit|>\n"
        f"{record['after']}\n<|/current_file_content|>\n\n<|edit_diff_history|>\n{history}\n<|/edit_diff_history|>\n"
    )


def test_record_is_the_request_that_serving_reads() -> None:
    assert request_of(RECORD) == parse_edit(message(RECORD))


def test_rows_vary_in_context_and_keep_region_and_answer() -> None:
    requests = [next(commit_rows(RECORD, random.Random(seed))).request for seed in range(60)]
    assert {request.region for request in requests} == {RECORD["region"]}
    assert {bool(request.before) for request in requests} == {True, False}
    assert {request.cursor is None for request in requests} == {True, False}
    assert all(request.history for request in requests)
    assert all(row.answer == RECORD["target"] for row in commit_rows(RECORD, random.Random(1)))


def test_history_is_left_out_only_where_nothing_follows_from_it() -> None:
    same = {**RECORD, "kind": "noop", "target": RECORD["region"]}
    requests = [next(commit_rows(same, random.Random(seed))).request for seed in range(60)]
    assert {bool(request.history) for request in requests} == {True, False}


def test_context_stays_where_the_edit_needs_it() -> None:
    needed = {**RECORD, "target": RECORD["target"].replace("item.price", "item.price * RATE")}
    requests = [next(commit_rows(needed, random.Random(seed))).request for seed in range(60)]
    assert all(request.snippets for request in requests)
    assert not new_words(requests[0], needed["target"])


def test_a_region_that_is_too_long_gives_no_row() -> None:
    assert not list(commit_rows({**RECORD, "region": "x\n" * 4000}, random.Random(0)))


def test_words_are_looked_for_in_every_part_of_a_request() -> None:
    request = EditRequest("a.py", "one_", "two_", "three_", history=("four_",))
    assert new_words(request, "one_ two_ three_ four_ five_") == {"five_"}


def test_a_diff_without_context_counts_its_lines_from_one() -> None:
    diff = "--- a/shop.py\n+++ b/shop.py\n@@ -31,3 +31,4 @@ def total\n one\n-two\n+2\n+two and a half\n three"
    bare = "--- shop.py\n+++ shop.py\n@@ -1,1 +1,2 @@\n-two\n+2\n+two and a half"
    assert without_context(diff) == bare
    assert without_context(bare) == bare
    assert without_context("no diff") == "no diff"


def test_half_of_the_rows_have_diffs_without_context() -> None:
    numbered = {**RECORD, "history": [RECORD["history"][0].replace("@@ -1,1 +1,1 @@", "@@ -7,1 +7,1 @@")]}
    heads = [next(commit_rows(numbered, random.Random(seed))).request.history[0] for seed in range(80)]
    assert 20 < sum("@@ -1,1 +1,1 @@" in head for head in heads) < 60


def around_cursor(request: EditRequest) -> tuple[str, str]:
    assert request.cursor is not None
    left, right = request.region[: request.cursor], request.region[request.cursor :]
    return left.rpartition("\n")[2], right.partition("\n")[0]


def edited(line: str, diff: str, cursor: int) -> EditRequest:
    region = f"first()\n{line}\nlast()"
    return EditRequest("a.py", "", region, "", cursor=len("first()\n") + cursor, history=(diff,))


def test_the_cursor_of_some_finished_edits_is_inside_the_line() -> None:
    line = "total = price * 2  # doubled"
    request = edited(line, f"--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-total = price  # doubled\n+{line}", len(line))
    moved = [with_moved_cursor(request, "noop", random.Random(seed)) for seed in range(40)]
    assert {around_cursor(each) for each in moved} == {(line, ""), ("total = price * 2", "  # doubled")}


def test_an_edit_to_the_end_of_a_line_ends_with_the_line() -> None:
    for diff in ("-a = 1\n+a = 12", "+a = 12", "-a\n-b\n+a = 12", "-gone = 1;\n+gone = 2;"):
        assert end_of_change(edited("a = 12", f"--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n{diff}", 6)) is None
    assert end_of_change(EditRequest("a.py", "", "a = 12", "")) is None


def test_the_cursor_of_some_half_typed_lines_is_before_the_last_word() -> None:
    request = edited("shop.Cart { }", "--- a.py\n+++ a.py\n@@ -1,1 +1,1 @@\n-shop.Basket { }\n+shop.Cart { }", 9)
    moved = [with_moved_cursor(request, "midtype", random.Random(seed)) for seed in range(40)]
    assert {around_cursor(each) for each in moved} == {("shop.Cart", " { }"), ("shop.", "Cart { }")}
    assert with_moved_cursor(request, "next", random.Random(0)) is request
