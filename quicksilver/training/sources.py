"""Every named source of training rows: files of the data folder, and the syntheses. A recipe sets how many of each.

A source is a function from (folder, seeded random) to rows. Held-out items never become training rows;
`held_out_rows` returns them. Rows whose answers have an unclear licence are prompt-only.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quicksilver.hub.data_files import is_held_out, read_records
from quicksilver.text.chat import Message, Tool, ToolCall
from quicksilver.training.rows import ChatRow, EditRow, PlainRow, Row, TextRow, exchange
from quicksilver.training.synthesis import commits
from quicksilver.training.synthesis.apply import apply_rows
from quicksilver.training.synthesis.completions import completion_rows
from quicksilver.training.synthesis.edits import edit_rows
from quicksilver.training.synthesis.facts import fact_rows, identity_rows, thinking_rows, thought
from quicksilver.training.synthesis.fim import fim_rows
from quicksilver.training.synthesis.following import following_rows
from quicksilver.training.synthesis.functions import function_rows
from quicksilver.training.synthesis.questions import question_rows
from quicksilver.training.synthesis.records import (
    NoInstance,
    build_instance,
    extraction_rows,
    made_schema_rows,
    schema_row,
)
from quicksilver.training.synthesis.tools import tool_rows

# Whether a named thing (package, schema, question) belongs to the side being read.
Keep = Callable[[str], bool]
Source = Callable[[Path, Keep, random.Random], Iterator[Row]]
MakeRows = Callable[[Mapping[str, Any], random.Random], Iterator[Row]]

# Written by another model under unclear terms: only their questions are used, and our own model answers them.
_AMBER = "gpteacher"
_LONGEST_SCHEMA, _INSTANCES = 3600, 3
PROBLEMS = "asked_problems"
# More than any recipe takes from a synthesis.
_ENDLESS = 1 << 30


def _mix(names: tuple[str, ...]) -> Source:
    def rows(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
        for row in read_records(folder / "instructions_mix.jsonl.xz"):
            turns = tuple(Message(m["role"], m["content"]) for m in row["m"])
            if row["s"].startswith(names) and keep(turns[0].content):
                yield ChatRow(turns, is_prompt_only=row["s"].startswith(_AMBER))

    return rows


def _questions(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    """Training splits of question sets without a template, as likelihood is scored."""
    names = ("csqa-train", "openbookqa-train", "socialiqa-train")
    for row in read_records(folder / "instructions_mix.jsonl.xz"):
        question, answer = row["m"][0]["content"], row["m"][-1]["content"]
        if row["s"] in names and keep(question):
            yield PlainRow(f"Question: {question.partition(chr(10) + 'Options:')[0]}\nAnswer:", f" {answer}")


def _word_problems(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    """GSM8K's training split with the working in the thinking channel."""
    for row in read_records(folder / "instructions_mix.jsonl.xz"):
        question = row["m"][0]["content"]
        if row["s"] == "gsm8k-train" and keep(question):
            working, _, final = row["m"][-1]["content"].rpartition("The answer is ")
            if working:
                effort = rng.choice(("low", "medium", "high"))
                yield thought(question, working.strip(), f"The answer is {final.rstrip('.')}.", effort)


def _brief_problems(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    """GSM8K's training split with its terse working as the thinking of low effort."""
    for row in _word_problems(folder, keep, rng):
        yield replace(row, effort="low") if isinstance(row, ChatRow) else row


def _asked_problems(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    """The same questions without answers: `rehearse` keeps answers of the base that reach the right number."""
    for row in _word_problems(folder, keep, rng):
        if isinstance(row, ChatRow):
            yield replace(row, effort=None, domain="questions", is_prompt_only=True)


def _sni(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    for row in read_records(folder / "instructions_sni.jsonl.xz"):
        if keep(row["in"]):
            yield exchange(f"{row['def']}\n\n{row['in']}", row["out"])


def _text(file: str, chunk_chars: int, per_document: int) -> Source:
    def rows(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
        for row in read_records(folder / file):
            if not keep(str(row.get("p") or row.get("n"))):
                continue
            text = row["t"].replace("\r\n", "\n")
            for _ in range(min(per_document, len(text) // chunk_chars + 1)):
                start = rng.randrange(max(1, len(text) - chunk_chars))
                start = text.find("\n", start) + 1 if start else 0
                yield TextRow(text[start : start + chunk_chars], "code" if "p" in row else "text")

    return rows


def _fim(file: str) -> Source:
    def rows(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
        texts = (row["t"] for row in read_records(folder / file) if keep(row["p"]))
        yield from fim_rows(texts, 8, rng)

    return rows


def _functions(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    yield from function_rows((row["t"] for row in read_records(folder / "code_python.jsonl.xz") if keep(row["p"])), rng)


def _edits(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    for row in read_records(folder / "edits_python.jsonl.xz"):
        if keep(row["p"]):
            yield from edit_rows(row, rng)


def _commits(*kinds: str, make: MakeRows = commits.commit_rows) -> Source:
    """Rows of real commits, which lie in a folder beside the training data."""

    def rows(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
        for record in read_records(folder.parent / "edits" / "train.jsonl.xz"):
            kind = commits.SIMULATED if record["kind"].startswith(commits.SIMULATED) else record["kind"]
            if kind in kinds and keep(record["id"]):
                yield from make(record, rng)

    return rows


def _apply(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    for row in read_records(folder / "edits_python.jsonl.xz"):
        if keep(row["p"]):
            yield from apply_rows(row, rng)


def _sgd(file: str) -> Source:
    def rows(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
        for row in read_records(folder / file):
            yield from _dialogue(row, rng)

    return rows


def _dialogue(row: Mapping[str, Any], rng: random.Random) -> Iterator[ChatRow]:
    """A dialogue up to one of its assistant turns; a tool's name is often respelled, so that it must be read."""
    rename = _snake if rng.random() < 0.4 else str
    tools = tuple(Tool(rename(t["name"]), t["description"], t["parameters"]) for t in row["tools"])
    turns = [_turn(message, rename) for message in row["messages"]]
    ends = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
    calls = [i for i in ends if turns[i].tool_calls]
    end = rng.choice(calls if calls and rng.random() < 0.6 else ends) + 1
    yield ChatRow(tuple(turns[:end]), tools, domain="tools")


def _turn(message: Mapping[str, Any], rename: Callable[[str], str]) -> Message:
    if message["role"] == "tool":
        return Message("tool", json.dumps(message["content"], ensure_ascii=False))
    calls = tuple(
        ToolCall(rename(c["name"]), json.dumps(c["arguments"], ensure_ascii=False))
        for c in message.get("tool_calls", ())
    )
    return Message(message["role"], message.get("content") or "", tool_calls=calls)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _schemas(folder: Path, keep: Keep, rng: random.Random) -> Iterator[Row]:
    """Schemas as requests; the instances are built by rule here, and only those that validate are kept."""
    for row in read_records(folder / "json_schema_pairs.jsonl.xz"):
        schema = row["schema"]
        written = json.dumps(schema)
        if len(written) <= _LONGEST_SCHEMA and keep(written):
            yield from _schema_instances(schema, rng)


def _schema_instances(schema: Any, rng: random.Random) -> Iterator[Row]:
    import jsonschema_rs

    for _ in range(_INSTANCES):
        try:
            instance = build_instance(schema, rng)
            if isinstance(instance, (dict, list)) and jsonschema_rs.is_valid(schema, instance):
                yield schema_row(schema, instance, rng)
        except (NoInstance, ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
            return


def _made(make: Callable[[int, random.Random], Iterator[Row]]) -> Source:
    return lambda folder, keep, rng: make(_ENDLESS, rng)


_MADE: dict[str, Source] = {
    "tools": _made(tool_rows),
    "made_schemas": _made(made_schema_rows),
    "extraction": _made(extraction_rows),
    "following": _made(following_rows),
    "asked": _made(question_rows),
    "facts": _made(fact_rows),
    "identity": _made(identity_rows),
    "thinking": _made(thinking_rows),
}

SOURCES: dict[str, Source] = {
    "chat": _mix(("factbook", "chatterbot", "exercism", "csqa", "openbookqa")),
    "trivia": _mix(("opentriviaqa",)),
    "social": _mix(("socialiqa",)),
    "reading": _mix(("boolq",)),
    "commands": _mix(("tldr",)),
    "sums": _mix(("gsm8k",)),
    "amber": _mix((_AMBER,)),
    "questions": _questions,
    "word_problems": _word_problems,
    "brief_problems": _brief_problems,
    PROBLEMS: _asked_problems,
    "sni": _sni,
    "text": _text("general_text.jsonl.xz", 3600, 2),
    "books": _text("general_books2.jsonl.xz", 3600, 3),
    "code_text": _text("code_python.jsonl.xz", 3000, 1),
    "functions": _functions,
    "fim_python": _fim("code_python.jsonl.xz"),
    "fim_js": _fim("code_js_ts.jsonl.xz"),
    "edits": _edits,
    "commits_next": _commits(commits.REAL),
    "commits_propagated": _commits(commits.PROPAGATED),
    "commits_half_typed": _commits(commits.HALF_TYPED),
    "commits_nothing": _commits(commits.NOTHING),
    "commits_simulated": _commits(commits.SIMULATED),
    "commits_completed": _commits(commits.REAL, commits.PROPAGATED, commits.NOTHING, make=completion_rows),
    "apply": _apply,
    "dialogues": _sgd("tools_sgd_train.jsonl.xz"),
    "schemas": _schemas,
    **_MADE,
}

# Sources of the held-out prompts that are answered after a run, by domain.
HELD_OUT: dict[str, Source] = {
    "chat": _mix(("gpteacher-roleplay", "chatterbot", "factbook", "opentriviaqa", "gsm8k", "exercism")),
    "fim": _fim("code_python.jsonl.xz"),
    "edit": _edits,
    "tools": _sgd("tools_sgd_dev.jsonl.xz"),
    "json": _schemas,
    "think": _word_problems,
}


# Sources that call `keep` for everything they read, so that several processes can share one.
DIVIDED = frozenset({*SOURCES} - {"dialogues", "schemas", *_MADE})


def training_rows(name: str, folder: Path, seed: int, part: int = 0, parts: int = 1) -> Iterator[Row]:
    """Rows of a source, or of one of the `parts` into which its things are divided by name."""

    def keep(thing: str) -> bool:
        return not is_held_out(thing) and (parts == 1 or zlib.crc32(thing.encode()) % parts == part)

    return SOURCES[name](folder, keep, random.Random(f"{seed}/{name}/{part}" if part else f"{seed}/{name}"))


def held_out_rows(domain: str, folder: Path, seed: int) -> Iterator[Row]:
    return HELD_OUT[domain](folder, is_held_out, random.Random(f"{seed}/held-out/{domain}"))


def held_out_edits(folder: Path, seed: int) -> Iterator[tuple[str, EditRow]]:
    """Next edits of commit records that no training row comes from, each with its kind."""
    rng = random.Random(f"{seed}/held-out/commits")
    for record in read_records(folder.parent / "edits" / "train.jsonl.xz"):
        if is_held_out(record["id"]):
            for row in commits.commit_rows(record, rng):
                yield str(record["kind"]), row
