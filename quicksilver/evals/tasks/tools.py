"""Tool calls: dialogues of Schema-Guided Dialogue (dev and test services, some unseen) and single turns of BFCL.

`call` requires the correct tool and all arguments, `name` only the correct tool. `no_call` requires that no tool is
called where none is needed. Values are compared as case-insensitive text, because the data stores all values as
strings. `call_stated` is `call` restricted to turns whose values all occur in the conversation; other values, such as a
date for "tomorrow", cannot be inferred.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.evals.data import Record, pack_records, train_file
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task
from quicksilver.hub.data_files import read_records
from quicksilver.text.conversation import Message, Tool, ToolCall

# Allowed values of each argument. An empty value allows the argument to be absent.
Allowed = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation before an assistant turn. `name` is empty if no call is expected."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    name: str = ""
    arguments: Allowed | None = None


def dialogue_turns(record: Record, number: int) -> Iterator[Turn]:
    """One turn with a call per dialogue and, for every third dialogue, one without. The index determines which."""
    rng = random.Random(number)
    tools = tuple(Tool(t["name"], t["description"], t["parameters"]) for t in record["tools"])
    turns = [_message(message) for message in record["messages"]]
    calls = [i for i, turn in enumerate(turns) if turn.tool_calls]
    others = [i for i, turn in enumerate(turns) if turn.role == "assistant" and not turn.tool_calls]
    if calls:
        end = rng.choice(calls)
        call = turns[end].tool_calls[0]
        wanted = {name: (_plain(value),) for name, value in json.loads(call.arguments).items()}
        yield Turn(tuple(turns[:end]), tools, call.name, wanted)
    if others and number % 3 == 0:
        yield Turn(tuple(turns[: rng.choice(others)]), tools)


def _message(record: Record) -> Message:
    if record["role"] == "tool":
        return Message("tool", json.dumps(record["content"], ensure_ascii=False))
    calls = tuple(ToolCall(call["name"], json.dumps(call["arguments"])) for call in record.get("tool_calls", ()))
    return Message(record["role"], record.get("content") or "", tool_calls=calls)


def _plain(value: Any) -> str:
    """Normalise a value for comparison."""
    return (value if isinstance(value, str) else json.dumps(value, sort_keys=True)).strip().lower()


def ask(turn: Turn, writer: PromptBuilder) -> Generate:
    prompt = writer.chat(turn.messages, turn.tools)
    names = frozenset(tool.name for tool in turn.tools)
    return Generate(prompt.ids, 160, prompt.stop, prompt.stop_ids, names)


def score(turn: Turn, answer: Answer) -> Metrics:
    if not turn.name:
        return {"no_call": float(not answer.calls)}
    has_name = len(answer.calls) == 1 and answer.calls[0].name == turn.name
    call = float(has_name and _fits(answer.calls[0].arguments, turn.arguments or {}))
    return {"call": call, "name": float(has_name)} | ({"call_stated": call} if _is_stated(turn) else {})


def _is_stated(turn: Turn) -> bool:
    told = "\n".join(message.content for message in turn.messages).lower()
    return all(any(value in told for value in values) for values in (turn.arguments or {}).values())


def _fits(written: str, allowed: Allowed) -> bool:
    try:
        given = json.loads(written)
    except ValueError:
        return False
    if not isinstance(given, dict) or not given.keys() <= allowed.keys():
        return False
    found = {name: _plain(value) for name, value in given.items()}
    return all(found.get(name, "") in values for name, values in allowed.items())


def _sgd(name: str, file: str) -> Task[Turn]:
    def load(data: Path) -> Iterable[Turn]:
        records = enumerate(read_records(train_file(data, file)))
        return [turn for number, record in records for turn in dialogue_turns(record, number)]

    return Task(name, "tools", ("call", "call_stated", "name", "no_call"), load, ask, score)


def bfcl_turn(record: Record, truth: Record | None) -> Turn:
    tools = tuple(Tool(f["name"], f["description"], _as_schema(f["parameters"])) for f in record["function"])
    messages = tuple(Message(m["role"], m["content"]) for m in record["question"][0])
    if truth is None:
        return Turn(messages, tools)
    ((name, arguments),) = truth["ground_truth"][0].items()
    return Turn(messages, tools, name, {key: tuple(map(_plain, values)) for key, values in arguments.items()})


def _as_schema(value: Any) -> Any:
    """Convert type names of the data set to those of JSON Schema."""
    if isinstance(value, list):
        return [_as_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    kind = value.get("type")
    renamed = {"type": names.get(kind, kind)} if isinstance(kind, str) else {}
    return {key: _as_schema(item) for key, item in value.items()} | renamed


def _bfcl(name: str, headline: str) -> Task[Turn]:
    def load(data: Path) -> Iterable[Turn]:
        has_truth = name != "bfcl_irrelevance"
        truths = {record["id"]: record for record in pack_records(data, f"{name}_answers")} if has_truth else {}
        return [bfcl_turn(record, truths.get(record["id"])) for record in pack_records(data, name)]

    return Task(name, "tools", (headline,), load, ask, score)


TASKS = (
    _sgd("sgd_dev", "tools_sgd_dev"),
    _sgd("sgd_test", "tools_sgd_test"),
    _bfcl("bfcl_simple_python", "call"),
    _bfcl("bfcl_multiple", "call"),
    _bfcl("bfcl_irrelevance", "no_call"),
)
