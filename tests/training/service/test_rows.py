"""Lines of fine-tuning files: what is read, and where each fault is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, TextRow
from quicksilver.training.service import rows
from quicksilver.training.service.faults import MAX_FAULTS, Faults
from quicksilver.training.service.rows import TuningRow, read_rows

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
EDIT = (
    "<|current_file_content|>\ncurrent_file_path: a.py\nx = 1\n<|code_to_edit|>\ny = 2<|cursor|>\n<|/code_to_edit|>\n"
    "<|/current_file_content|>\n"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


def call(arguments: str = '{"a": 1}', name: str = "add") -> dict[str, Any]:
    calls = [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def read(*lines: object, method: str = "supervised") -> tuple[list[TuningRow], Faults]:
    faults = Faults()
    raw = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return read_rows(raw, method, faults), faults


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ({"messages": [USER, ANSWER]}, ChatRow),
        ({"messages": [{"role": "developer", "content": "Be brief"}, USER, ANSWER]}, ChatRow),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]}, ChatRow),
        ({"text": "Once"}, TextRow),
        ({"prompt": "a", "suffix": "c", "completion": "b"}, FimRow),
        ({"prefix": "a", "middle": "b", "suffix": "c"}, FimRow),
        ({"prompt": "a", "completion": "b"}, PlainRow),
        ({"edit": EDIT, "answer": "y = 3\n"}, EditRow),
        ({"messages": [{"role": "user", "content": EDIT}, {"role": "assistant", "content": "y = 3\n"}]}, EditRow),
    ],
)
def test_every_kind_of_line_is_read(line: object, kind: type) -> None:
    (row,), faults = read(line)
    assert isinstance(row.row, kind)
    assert not faults.count


@pytest.mark.parametrize(
    ("line", "pointer", "code"),
    [
        (b"{", "", "invalid_jsonl"),
        (b"\xff\xfe", "", "invalid_jsonl"),
        ([1], "", "invalid_row"),
        ({"other": 1}, "", "invalid_row"),
        ({"messages": "x"}, "/messages", "invalid_row"),
        ({"messages": [USER]}, "/messages/0/role", "invalid_row"),
        ({"messages": [{"role": "robot", "content": "x"}, ANSWER]}, "/messages/0/role", "invalid_row"),
        ({"messages": [{"role": "user", "content": 3}, ANSWER]}, "/messages/0/content", "invalid_row"),
        ({"messages": [USER, {**ANSWER, "weight": 2}]}, "/messages/1/weight", "invalid_row"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "/messages", "invalid_row"),
        ({"messages": [USER, ANSWER], "extra": 1}, "/extra", "invalid_row"),
        ({"messages": [USER, call()]}, "/messages/1/tool_calls/0/function/name", "invalid_row"),
        (
            {"messages": [USER, call("{"), ANSWER], "tools": [TOOL]},
            "/messages/1/tool_calls/0/function/arguments",
            "invalid_row",
        ),
        (
            {"messages": [USER, call('{"a": "one"}'), ANSWER], "tools": [TOOL]},
            "/messages/1/tool_calls/0/function/arguments",
            "invalid_row",
        ),
        (
            {"messages": [USER, {"role": "tool", "content": "1", "tool_call_id": "c9"}, ANSWER], "tools": [TOOL]},
            "/messages/1/tool_call_id",
            "invalid_row",
        ),
        ({"text": ""}, "/text", "invalid_row"),
        ({"prompt": "a", "suffix": "c", "completion": ""}, "/completion", "invalid_row"),
        ({"prompt": "a", "completion": 1}, "/completion", "invalid_row"),
        ({"edit": "no region", "answer": "x"}, "/edit", "invalid_row"),
    ],
)
def test_a_fault_has_its_line_pointer_and_code(line: object, pointer: str, code: str) -> None:
    rows, faults = read({"text": "fine"}, b"", line)
    assert len(rows) == 1
    (fault,) = faults.kept
    assert (fault.line, fault.pointer, fault.code) == (3, pointer, code)


def test_the_first_twenty_faults_are_kept_and_all_are_counted() -> None:
    _, faults = read(*[{"text": 1}] * 33)
    assert (len(faults.kept), faults.count) == (MAX_FAULTS, 33)


def test_a_call_that_fits_its_schema_is_read() -> None:
    reply = {"role": "tool", "content": "2", "tool_call_id": "c1"}
    (row,), faults = read({"messages": [USER, call(), reply, ANSWER], "tools": [TOOL]})
    assert not faults.count
    assert isinstance(row.row, ChatRow)
    assert [tool.name for tool in row.row.tools] == ["add"]


def test_a_schema_that_refers_to_another_document_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    _, faults = read({"messages": [USER, ANSWER], "tools": [tool]})
    assert faults.kept[0].pointer == "/tools/0/function/parameters"


def test_assistant_turns_have_their_weights() -> None:
    (row,), _ = read({"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]})
    assert row.learned == (False, True)


PAIR = {
    "input": {"messages": [USER]},
    "preferred_output": [ANSWER],
    "non_preferred_output": [{"role": "assistant", "content": "No"}],
}


def test_pairs_are_read() -> None:
    (chat, plain), faults = read(PAIR, {"prompt": "a", "chosen": "b", "rejected": "c"}, method="dpo")
    assert not faults.count
    assert isinstance(chat.rejected, ChatRow)
    assert chat.rejected.messages[-1].content == "No"
    assert plain.rejected == PlainRow("a", "c")


@pytest.mark.parametrize(
    ("line", "pointer"),
    [
        ({**PAIR, "input": {}}, "/input"),
        ({**PAIR, "input": {"messages": [{"role": "x", "content": ""}]}}, "/input/messages/0/role"),
        ({**PAIR, "preferred_output": []}, "/preferred_output"),
        ({**PAIR, "preferred_output": [USER]}, "/preferred_output/0/role"),
        ({**PAIR, "non_preferred_output": [ANSWER]}, "/non_preferred_output"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "/rejected"),
    ],
)
def test_faults_of_pairs_have_their_place(line: object, pointer: str) -> None:
    _, faults = read(line, method="dpo")
    assert faults.kept[0].pointer == pointer


def test_judged_answers_are_read() -> None:
    line = {"prompt": "a", "suffix": "", "completion": "b", "label": False, "weight": 0.3, "source": "ignore"}
    (row,), faults = read(line, method="kto")
    assert not faults.count
    assert (row.label, row.weight) == (False, 0.3)


@pytest.mark.parametrize(
    ("line", "pointer"),
    [
        ({"prompt": "a", "completion": "b"}, "/label"),
        ({"prompt": "a", "completion": "b", "label": 1}, "/label"),
        ({"prompt": "a", "completion": "b", "label": True, "weight": 0}, "/weight"),
        ({"text": "a", "label": True}, "/text"),
    ],
)
def test_faults_of_judged_answers_have_their_place(line: object, pointer: str) -> None:
    _, faults = read(line, method="kto")
    assert faults.kept[0].pointer == pointer


def test_nothing_is_read_after_the_limit_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 3)
    found, faults = read({"text": "a"}, b"", {"text": "b"}, {"text": "c"}, b"not read", b"nor this")
    assert len(found) == 3
    assert [(fault.line, fault.code) for fault in faults.kept] == [(5, "file_too_large")]


def edit_chat(answer: str, region: str = "y = 2<|cursor|>\n") -> dict[str, Any]:
    message = EDIT.replace("y = 2<|cursor|>\n", region)
    return {"messages": [{"role": "user", "content": message}, {"role": "assistant", "content": answer}]}


@pytest.mark.parametrize(
    ("answer", "learned"),
    [
        ("```\ny = 3\n\n```", "y = 3\n"),
        ("```\ny = 3\n```", "y = 3"),
        ("y = 3\n", "y = 3\n"),
        ("```python\ny = 3\n```", "```python\ny = 3\n```"),
    ],
)
def test_the_fence_of_a_recorded_edit_is_not_learned(answer: str, learned: str) -> None:
    (row,), _ = read(edit_chat(answer))
    assert isinstance(row.row, EditRow)
    assert row.row.answer == learned


def test_a_region_that_is_a_fence_keeps_it() -> None:
    (row,), _ = read(edit_chat("```\nb\n```", region="```\na<|cursor|>\n```\n"))
    assert isinstance(row.row, EditRow)
    assert row.row.answer == "```\nb\n```"


DEEP = '{"a": ' + '{"a": ' * 5000 + "1" + "}" * 5001


@pytest.mark.parametrize(
    ("line", "pointer", "code"),
    [
        (b'{"text": ' + b"9" * 5000 + b"}", "", "invalid_jsonl"),
        (b'{"text": "a\\ud800"}', "/text", "invalid_row"),
        (b'{"messages": [{"role": "user", "content": "\\udfff"}]}', "/messages/0/content", "invalid_row"),
        (b'{"a/b": {"\\ud800": 1}}', "/a~1b", "invalid_row"),
        (
            {"messages": [USER, call(DEEP)], "tools": [TOOL]},
            "/messages/1/tool_calls/0/function/arguments",
            "invalid_row",
        ),
        (
            {"messages": [USER, call('{"a": 1, "b": "\\ud800"}')], "tools": [TOOL]},
            "/messages/1/tool_calls/0/function/arguments",
            "invalid_row",
        ),
    ],
)
def test_values_that_cannot_be_read_have_a_place(line: object, pointer: str, code: str) -> None:
    found, faults = read({"text": "fine"}, line)
    assert len(found) == 1
    assert [(fault.line, fault.pointer, fault.code) for fault in faults.kept] == [(2, pointer, code)]


def test_a_whole_surrogate_pair_is_a_character() -> None:
    (row,), faults = read(b'{"text": "\\ud83d\\ude00"}')
    assert not faults.count
    assert isinstance(row.row, TextRow)
