"""Rows of a user's own files: one JSON object per line, each a chat, an infilling, an edit, a pair or a text.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prefix": "def add(a, b):\\n    return ", "middle": "a + b", "suffix": "\\n"}
    {"edit": "<|current_file_content|>…", "answer": "…"}
    {"prompt": "…", "completion": "…"}
    {"text": "…"}

Files may be compressed with gzip or xz. Every bad row is reported with its file and line.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.editing.prompts import parse_edit
from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import Tool
from quicksilver.text.messages import read_conversation
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, Row, TextRow

# Most bad rows that one message lists.
MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class OwnRow:
    """A row and its line in the file."""

    row: Row
    line: int


def read_own_rows(path: Path) -> list[OwnRow]:
    """All rows of a file. Raises InvalidRequest that lists the first bad rows by line."""
    rows, faults = list[OwnRow](), list[str]()
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            rows.append(OwnRow(read_row(json.loads(line)), number))
        except json.JSONDecodeError as error:
            faults.append(f"line {number}: not valid JSON ({error.msg}, column {error.colno})")
        except InvalidRequest as error:
            faults.append(f"line {number}: {error.message}")
    if faults:
        more = f"\n  and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
        raise InvalidRequest(f"{path} has {len(faults)} bad rows:\n  " + "\n  ".join(faults[:MAX_LISTED]) + more)
    if not rows:
        raise InvalidRequest(f"{path} has no rows")
    return rows


def read_row(fields: Any) -> Row:
    """A row by its keys."""
    if not isinstance(fields, Mapping):
        raise InvalidRequest("a row is a JSON object")
    for keys, read in _KINDS.items():
        if keys[0] in fields:
            if unknown := sorted(set(fields) - set(keys) - {"tools"}):
                raise InvalidRequest(f"unknown key {unknown[0]!r} beside {keys[0]!r}")
            return read(fields)
    raise InvalidRequest(f"a row has one of the keys {', '.join(keys[0] for keys in _KINDS)}")


def _chat(fields: Mapping[str, Any]) -> Row:
    if not isinstance(fields["messages"], list):
        raise InvalidRequest("messages is a list")
    messages = tuple(read_conversation(fields["messages"]))
    if messages[-1].role != "assistant":
        raise InvalidRequest("the last message is the assistant's answer")
    return ChatRow(messages, tuple(_tool(tool) for tool in fields.get("tools") or ()), domain="own")


def _tool(fields: Any) -> Tool:
    function = fields.get("function", fields) if isinstance(fields, Mapping) else {}
    if not isinstance(function.get("name"), str):
        raise InvalidRequest("a tool has a function with a name")
    return Tool(function["name"], function.get("description") or "", function.get("parameters") or {})


def _fim(fields: Mapping[str, Any]) -> Row:
    prefix, middle, suffix = (_text_of(fields, key) for key in ("prefix", "middle", "suffix"))
    if not middle:
        raise InvalidRequest("middle is empty")
    return FimRow(prefix, middle, suffix, domain="own")


def _edit(fields: Mapping[str, Any]) -> Row:
    return EditRow(parse_edit(_text_of(fields, "edit")), _text_of(fields, "answer"), "own", counts_copies_apart=True)


def _pair(fields: Mapping[str, Any]) -> Row:
    return PlainRow(_text_of(fields, "prompt"), _text_of(fields, "completion"), domain="own")


def _running_text(fields: Mapping[str, Any]) -> Row:
    return TextRow(_text_of(fields, "text"), "own")


def _text_of(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{key} is a string")
    return value


# Keys of a row; the first one determines its kind.
_KINDS: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Row]] = {
    ("messages",): _chat,
    ("prefix", "middle", "suffix"): _fim,
    ("edit", "answer"): _edit,
    ("prompt", "completion"): _pair,
    ("text",): _running_text,
}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            yield from enumerate(lines, 1)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text: {error}") from error
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise InvalidRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
