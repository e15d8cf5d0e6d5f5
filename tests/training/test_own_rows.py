"""Rows of a user's own files: every kind is read, and bad rows are reported by line."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.training.own_rows import read_own_rows, read_row
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, TextRow

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
EDIT = (
    "<|current_file_content|>\ncurrent_file_path: a.py\n<|code_to_edit|>\nx = 1\n<|/code_to_edit|>\n"
    "<|/current_file_content|>"
)


def test_every_kind_of_row_is_read() -> None:
    chat = read_row({**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]})
    assert isinstance(chat, ChatRow)
    assert [turn.content for turn in chat.messages] == ["Hi", "Hello."]
    assert chat.tools[0].name == "f"
    assert isinstance(read_row({"prefix": "a", "middle": "b", "suffix": "c"}), FimRow)
    edit = read_row({"edit": EDIT, "answer": "x = 2"})
    assert isinstance(edit, EditRow)
    assert edit.request.region.strip() == "x = 1"
    assert isinstance(read_row({"prompt": "a", "completion": "b"}), PlainRow)
    assert isinstance(read_row({"text": "a"}), TextRow)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"])
def test_plain_and_compressed_files_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    raw = f"{json.dumps(CHAT)}\n\n{json.dumps({'text': 'ü'})}\n".encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(raw))
    assert [own.line for own in read_own_rows(path)] == [1, 3]


def test_bad_rows_are_reported_by_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    bad = [
        '{"messages": [',
        json.dumps({"messages": [{"role": "user", "content": "Hi"}]}),
        json.dumps({"messages": [{"role": "robot", "content": "Hi"}]}),
        json.dumps({"prefix": "a", "middle": "b"}),
        json.dumps({"edit": "no tags", "answer": "b"}),
        json.dumps({"question": "a"}),
        json.dumps([1]),
    ]
    path.write_text("\n".join([json.dumps(CHAT), *bad]))
    with pytest.raises(InvalidRequest) as refused:
        read_own_rows(path)
    told = refused.value.message.splitlines()
    assert told[0] == f"{path} has 7 bad rows:"
    assert told[1].startswith("  line 2: not valid JSON")
    assert told[2] == "  line 3: the last message is the assistant's answer"
    assert told[3].startswith("  line 4: messages.0: role is one of")
    assert told[4] == "  line 5: suffix is a string"
    assert told[5].startswith("  line 6: the message has no <|code_to_edit|> section")
    assert told[6] == "  and 2 more"


def test_unreadable_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_own_rows(tmp_path / "none.jsonl")
    for name, raw in (("empty.jsonl", b"\n"), ("latin.jsonl", b'{"text": "\xff"}'), ("cut.jsonl.xz", b"\xfd7zXZ")):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(InvalidRequest, match=name.split(".")[0]):
            read_own_rows(tmp_path / name)
