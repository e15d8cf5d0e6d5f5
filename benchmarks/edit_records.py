"""Records of real edits as requests of an editor, for `feedback_kto.py`.

A record has a region of a file, the edits before it, and the region after the next edit (`target`). The editor of these
requests sends few lines around the region and no other files, so that prompts are short.
"""

from __future__ import annotations

import hashlib
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from quicksilver.editing.prompts import CURSOR, edit_prompt, parse_edit
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.proposals import EditPrompt
from quicksilver.training.synthesis.commits import NOTHING

TRAIN, HOLDOUT = "train.jsonl.xz", "holdout.jsonl.xz"
# One of so many repositories of the training file gives feedback; the others are for validation.
FEEDBACK = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Lines of the file on each side of the region, and the most tokens of a prompt."""

    context_lines: int = 4
    prompt_tokens: int = 400


@dataclass(frozen=True, slots=True)
class EditorRequest:
    """A message to `/v1/edit/completions`, and what is known about the wanted answer."""

    id: str
    message: str
    edit: EditPrompt

    @property
    def is_noop(self) -> bool:
        return self.edit.kind == NOTHING


def message_of(record: Mapping[str, Any], context_lines: int) -> str:
    lines = record["region"].split("\n")
    row, column = record["cursor"]
    lines[row] = lines[row][:column] + CURSOR + lines[row][column:]
    above = _lines(record["before"])
    before = "".join(f"{line}\n" for line in above[max(0, len(above) - context_lines) :])
    after = "".join(f"{line}\n" for line in _lines(record["after"])[:context_lines])
    region = "\n".join(lines)
    history = "".join(f"{diff.strip(chr(10))}\n" for diff in record["history"])
    return (
        "<|recently_viewed_code_snippets|>\n<|/recently_viewed_code_snippets|>\n\n"
        f"<|current_file_content|>\ncurrent_file_path: {record['path']}\n"
        f"{before}<|code_to_edit|>\n{region}\n<|/code_to_edit|>\n{after}<|/current_file_content|>\n\n"
        f"<|edit_diff_history|>\n{history}<|/edit_diff_history|>\n"
    )


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def request_of(record: Mapping[str, Any], tokenizer: Tokenizer, limits: Limits) -> EditorRequest | None:
    """None where the prompt is too long."""
    message = message_of(record, limits.context_lines)
    if len(message) > 8 * limits.prompt_tokens:
        return None
    prompt = edit_prompt(tokenizer, parse_edit(message))
    if len(prompt) > limits.prompt_tokens:
        return None
    return EditorRequest(record["id"], message, EditPrompt(prompt, record["region"], record["target"], record["kind"]))


def gives_feedback(repo: str) -> bool:
    return hashlib.sha256(repo.encode()).digest()[0] % FEEDBACK == 0


def requests_of(
    records: Sequence[Mapping[str, Any]], num: int, tokenizer: Tokenizer, limits: Limits, seed: int
) -> list[EditorRequest]:
    """The first `num` requests that are short enough, in a random order."""
    order = list(range(len(records)))
    random.Random(seed).shuffle(order)
    found = list[EditorRequest]()
    for index in order:
        if len(found) == num:
            break
        if (request := request_of(records[index], tokenizer, limits)) is not None:
            found.append(request)
    return found


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rb") as file:
        yield from map(orjson.loads, file)
