from __future__ import annotations

import itertools
import json
import random

import jsonschema_rs
import pytest

from quicksilver.training.corpus import OverlapCheck, is_held_out
from quicksilver.training.synthesis.apply import snippet
from quicksilver.training.synthesis.edits import edit_rows, hunks, is_implied
from quicksilver.training.synthesis.facts import fact_rows, identity_rows, thinking_rows
from quicksilver.training.synthesis.fim import fim_rows
from quicksilver.training.synthesis.following import following_rows
from quicksilver.training.synthesis.functions import function_rows
from quicksilver.training.synthesis.questions import question_rows
from quicksilver.training.synthesis.records import build_instance, extraction_rows, made_schema_rows
from quicksilver.training.synthesis.tools import tool_rows

OLD = """def f(count, data):
    total = 0
    for item in data:
        total += item * count
    print(total)
    return total"""
NEW = OLD.replace("total", "result")


def test_function_prompts_show_heads_and_never_a_lone_body() -> None:
    text = 'def f(x):\n    """Doubles a number, whatever it is."""\n    return x * 2\n\ndef g():\n    return 1\n'
    rows = [row for seed in range(40) for row in function_rows([text], random.Random(seed))]
    assert all(row.is_prompt_only and row.domain == "code" for row in rows)
    asked = {row.messages[0].content for row in rows}
    assert all("Doubles a number" in question and "def g" not in question for question in asked)
    assert {"return x * 2" in question for question in asked} == {True, False}


def test_made_schemas_have_valid_instances() -> None:
    for row in made_schema_rows(200, random.Random(3)):
        written = row.messages[0].content
        schema = json.loads(written[written.index("{") :])
        assert jsonschema_rs.is_valid(schema, json.loads(row.messages[1].content))


def test_questions_leave_the_answer_to_a_teacher() -> None:
    rows = list(question_rows(300, random.Random(1)))
    assert all(row.is_prompt_only and row.messages[1].content == "" for row in rows)
    assert len({row.messages[0].content for row in rows}) > 200


def test_tool_calls_are_valid_under_the_tools_on_offer() -> None:
    num_calls = []
    for row in tool_rows(400, random.Random(1)):
        schemas = {tool.name: dict(tool.parameters) for tool in row.tools}
        calls = [call for message in row.messages for call in message.tool_calls]
        num_calls.append(len(calls))
        for call in calls:
            assert jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments))
    assert {0, 1, 2} <= set(num_calls)


def test_extracted_records_validate_and_are_told_in_the_text() -> None:
    for row in extraction_rows(100, random.Random(2)):
        prompt = "\n".join(m.content for m in row.messages[:-1])
        for value in json.loads(row.messages[-1].content).values():
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                assert str(value) in prompt


def test_instances_satisfy_plain_schemas() -> None:
    schema = {
        "type": "object",
        "required": ["id", "tags", "kind"],
        "properties": {
            "id": {"type": "integer", "minimum": 10, "maximum": 12},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3},
            "kind": {"enum": ["a", "b"]},
            "when": {"type": "string", "format": "date"},
            "inner": {"$ref": "#/definitions/inner"},
        },
        "definitions": {"inner": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    }
    for seed in range(30):
        assert jsonschema_rs.is_valid(schema, build_instance(schema, random.Random(seed)))


def test_counted_lists_have_the_asked_number_of_items() -> None:
    for row in following_rows(500, random.Random(3)):
        question, answer = row.messages[0].content, row.messages[1].content
        if question.startswith("List 4") and "JSON" in question:
            assert len(json.loads(answer)) == 4
        if "all capital letters" in question:
            assert answer == answer.upper()


@pytest.mark.parametrize("make", [fact_rows, identity_rows, thinking_rows])
def test_short_answers_are_never_empty(make: object) -> None:
    for row in make(200, random.Random(4)):  # type: ignore[operator]
        assert all(message.content.strip() for message in row.messages)


def test_edit_rows_rewrite_the_region_they_show() -> None:
    edit = {"a": OLD, "b": NEW, "f": "m.py"}
    rows = list(itertools.chain.from_iterable(edit_rows(edit, random.Random(seed)) for seed in range(40)))
    assert {row.answer == row.request.region for row in rows} == {True, False}
    for row in rows:
        request = row.request
        assert request.cursor is None or 0 <= request.cursor <= len(request.region)
        assert request.history
        # The history is applied: the lines it added are in the file.
        added = [line[1:] for line in request.history[-1].splitlines() if line.startswith("+") and line[1:2] != "+"]
        assert all(line in request.before + request.region + request.after for line in added)


def test_a_repeated_rename_is_implied_and_an_unrelated_change_is_not() -> None:
    first, *_, last = hunks(OLD.splitlines(), NEW.splitlines())
    assert is_implied([first], last)
    other = hunks(["a = 1", "b = 2"], ["a = 1", "c = 3"])[0]
    assert not is_implied([first], other)


def test_a_snippet_shows_changes_and_elides_the_rest() -> None:
    old = [f"line {i}" for i in range(12)]
    new = [*old[:6], "changed", *old[7:]]
    shown = snippet(old, hunks(old, new), context=1)
    assert shown == ["# ... existing code ...", "line 5", "changed", "line 7", "# ... existing code ..."]


def test_fim_pieces_join_to_a_piece_of_the_file() -> None:
    text = "\n".join(f"value_{i} = compute({i}, flag=True)" for i in range(60))
    rows = list(fim_rows([text], 20, random.Random(5)))
    assert len(rows) > 5
    assert all(row.prefix + row.middle + row.suffix in text for row in rows)


def test_overlap_finds_thirteen_shared_words_only() -> None:
    told = "one two three four five six seven eight nine ten eleven twelve thirteen"
    check = OverlapCheck([told])
    assert check.overlaps(f"He said: {told.upper()}!")
    assert not check.overlaps(told.replace("seven", "7"))
    assert not check.overlaps("short")


def test_holding_out_depends_on_the_name_alone() -> None:
    names = [f"package-{i}" for i in range(2000)]
    held = [name for name in names if is_held_out(name)]
    assert held == [name for name in names if is_held_out(name)]
    assert 60 < len(held) < 190
