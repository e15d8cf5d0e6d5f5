"""Lines of fine-tuning files -> rows of text.

| kind | line |
|---|---|
| chat | `messages`, optional `tools`; an assistant message with `"weight": 0` is not learned |
| text | `text` |
| fill in the middle | `prompt`, `suffix`, `completion` (or `prefix`, `middle`, `suffix`) |
| prompt | `prompt`, `completion` |
| next edit | `edit` (the message of an edit request), `answer`; or a chat whose only user message is such a message |
| dpo | `input` with `messages`, `preferred_output`, `non_preferred_output`; or `prompt`, `chosen`, `rejected` |
| kto | a line of the kinds above (not text) with `label`, optional `weight` and `source` |
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from quicksilver.editing.edit_request import REGION, parse_edit
from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message, Tool
from quicksilver.text.messages import read_conversation
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, Row, TextRow
from quicksilver.training.service.faults import Faults, lone_surrogate, pointer_of

# Text around the region in replies of the API.
FENCE_OPEN, FENCE_CLOSE = "```\n", "\n```"
# Lines that are read; the file is refused if it has more.
MAX_ROWS = 100_000
_JUDGEMENT = ("label", "weight", "source")
_CHAT_KEYS = ("messages", "tools", "parallel_tool_calls")
_KINDS: dict[str, tuple[str, ...]] = {
    "messages": _CHAT_KEYS,
    "text": ("text",),
    "edit": ("edit", "answer"),
    "middle": ("prefix", "middle", "suffix"),
    "suffix": ("prompt", "suffix", "completion"),
    "completion": ("prompt", "completion"),
}


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One line. Of a chat, `learned` is whether each assistant turn counts. Of a pair, `rejected` is the other
    answer. Of a judged answer, `label` is whether it is desirable."""

    row: Row
    line: int
    learned: tuple[bool, ...] = ()
    rejected: Row | None = None
    label: bool | None = None
    weight: float = 1.0


def read_rows(content: bytes, method: str, faults: Faults) -> list[TuningRow]:
    """The rows without fault; what is wrong with the others is added to `faults`. Nothing is read after `MAX_ROWS`."""
    rows = []
    for count, (number, line) in enumerate(_lines(content), start=1):
        if count > MAX_ROWS:
            faults.add(number, "", "file_too_large", f"more than {MAX_ROWS} lines; divide the file")
            break
        try:
            fields = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            faults.add(number, "", "invalid_jsonl", _reason(error))
            continue
        # In UTF-8, half of a surrogate pair can only be written as an escape.
        if b"\\u" in line and (pointer := lone_surrogate(fields)) is not None:
            faults.add(number, pointer, "invalid_row", "half a surrogate pair, which is not a character")
            continue
        try:
            rows.append(_read(fields, method, number))
        except InvalidRequest as error:
            faults.add(number, pointer_of(error.param), "invalid_row", error.message)
        except RecursionError:
            faults.add(number, "", "invalid_row", "nested too deeply")
    return rows


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg}, column {error.colno})"
    # The only other ValueError is that of a number with thousands of digits.
    return "not valid JSON (too deep)" if isinstance(error, RecursionError) else "a number has too many digits"


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")), start=1):
        if line.strip():
            yield number, line


def _read(fields: Any, method: str, line: int) -> TuningRow:
    if not isinstance(fields, dict):
        raise InvalidRequest("a line is a JSON object")
    if method == "dpo":
        return _pair(fields, line)
    if method != "kto":
        row, learned = read_row(fields)
        return TuningRow(row, line, learned)
    row, _ = read_row({key: value for key, value in fields.items() if key not in _JUDGEMENT})
    if isinstance(row, TextRow):
        raise InvalidRequest("running text has no answer to judge", param="text")
    if not isinstance(fields.get("label"), bool):
        raise InvalidRequest("true or false", param="label")
    weight = fields.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1:
        raise InvalidRequest("a number above 0, at most 1", param="weight")
    return TuningRow(row, line, label=fields["label"], weight=float(weight))


def read_row(fields: Mapping[str, Any]) -> tuple[Row, tuple[bool, ...]]:
    """The row, and of a chat which assistant turns are learned. Raises InvalidRequest with the place in `param`."""
    key = next((key for key in _KINDS if key in fields), None)
    if key is None:
        raise InvalidRequest("a line has one of the keys messages, text, completion, middle and edit")
    if unknown := sorted(set(fields) - set(_KINDS[key])):
        raise InvalidRequest(f"unknown key beside {key!r}", param=unknown[0])
    if key == "messages":
        return _chat(fields)
    texts = {name: _text(fields, name) for name in _KINDS[key]}
    if key == "text":
        return TextRow(_filled(texts, "text")), ()
    if key == "edit":
        return EditRow(_edit_request(texts["edit"], "edit"), texts["answer"]), ()
    if key == "completion":
        return PlainRow(texts["prompt"], _filled(texts, "completion")), ()
    before, middle = ("prefix", "middle") if key == "middle" else ("prompt", "completion")
    return FimRow(texts[before], _filled(texts, middle), texts["suffix"]), ()


def _pair(fields: Mapping[str, Any], line: int) -> TuningRow:
    if "chosen" in fields:
        if unknown := sorted(set(fields) - {"prompt", "chosen", "rejected"}):
            raise InvalidRequest("unknown key", param=unknown[0])
        texts = {name: _text(fields, name) for name in ("prompt", "chosen", "rejected")}
        chosen, rejected = (PlainRow(texts["prompt"], _filled(texts, name)) for name in ("chosen", "rejected"))
        if chosen.answer == rejected.answer:
            raise InvalidRequest("equals the chosen answer", param="rejected")
        return TuningRow(chosen, line, rejected=rejected)
    asked = fields.get("input")
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list) or not asked["messages"]:
        raise InvalidRequest("an object with a list of messages", param="input")
    answers = [_output(fields, name) for name in ("preferred_output", "non_preferred_output")]
    chats = []
    for name, answer in zip(("preferred_output", "non_preferred_output"), answers, strict=True):
        try:
            chats.append(_chat({**asked, "messages": [*asked["messages"], *answer]})[0])
        except InvalidRequest as error:
            place = error.param or ""
            is_answer = place.startswith(f"messages.{len(asked['messages'])}")
            raise InvalidRequest(error.message, param=name if is_answer else f"input.{place}") from None
    if answers[0] == answers[1]:
        raise InvalidRequest("equals preferred_output", param="non_preferred_output")
    return TuningRow(chats[0], line, rejected=chats[1])


def _output(fields: Mapping[str, Any], name: str) -> list[Any]:
    output = fields.get(name)
    if not isinstance(output, list) or len(output) != 1 or not isinstance(output[0], dict):
        raise InvalidRequest("a list with one assistant message", param=name)
    if output[0].get("role") != "assistant":
        raise InvalidRequest("the role is assistant", param=f"{name}.0.role")
    return output


def _chat(fields: Mapping[str, Any]) -> tuple[Row, tuple[bool, ...]]:
    given = fields["messages"]
    if not isinstance(given, list):
        raise InvalidRequest("a list of messages", param="messages")
    plain, learned = [], []
    for index, message in enumerate(given):
        if not isinstance(message, dict):
            raise InvalidRequest("a message is an object", param=f"messages.{index}")
        plain.append(_plain_message(message, f"messages.{index}"))
        if message.get("role") == "assistant":
            learned.append(_is_learned(message, index))
    messages = tuple(read_conversation(plain))
    if messages[-1].role != "assistant":
        raise InvalidRequest("the last message is the assistant's", param=f"messages.{len(messages) - 1}.role")
    if not any(learned):
        raise InvalidRequest("every assistant message has the weight 0", param="messages")
    tools = _tools(fields.get("tools"))
    _check_calls(messages, tools)
    if (edit := _as_edit(messages)) is not None:
        return edit, ()
    return ChatRow(messages, tuple(tools.values())), tuple(learned)


def _is_learned(message: Mapping[str, Any], index: int) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise InvalidRequest("0 or 1", param=f"messages.{index}.weight")
    return bool(weight)


def _plain_message(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Without `weight` and empty fields; text parts as one string; `developer` as `system`."""
    kept = {key: value for key, value in message.items() if key != "weight" and value is not None}
    if kept.get("role") == "developer":
        kept["role"] = "system"
    if isinstance(parts := kept.get("content"), list):
        texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
        bad = next((index for index, text in enumerate(texts) if not isinstance(text, str)), None)
        if bad is not None:
            raise InvalidRequest("a part has the type text", param=f"{place}.content.{bad}")
        kept["content"] = "".join(map(str, texts))
    return kept


def _tools(given: Any) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    if given is None:
        return tools
    if not isinstance(given, list):
        raise InvalidRequest("a list of functions", param="tools")
    for index, each in enumerate(given):
        function = each.get("function") if isinstance(each, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("a tool has a function with a name", param=f"tools.{index}.function.name")
        name, schema = function["name"], function.get("parameters") or {}
        try:
            _validator(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest("not a JSON schema", param=f"tools.{index}.function.parameters") from error
        tools[name] = Tool(name, function.get("description") or "", schema)
    return tools


def _check_calls(messages: Sequence[Message], tools: Mapping[str, Tool]) -> None:
    called: set[str] = set()
    for index, message in enumerate(messages):
        for number, call in enumerate(message.tool_calls):
            place = f"messages.{index}.tool_calls.{number}.function"
            if call.name not in tools:
                raise InvalidRequest(f"no tool is named {call.name[:64]!r}", param=f"{place}.name")
            _check_arguments(call.arguments, tools[call.name], f"{place}.arguments")
            called.add(call.id)
        if message.role == "tool" and message.tool_call_id not in called:
            raise InvalidRequest("no call has this id", param=f"messages.{index}.tool_call_id")


def _check_arguments(text: str, tool: Tool, place: str) -> None:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("not valid JSON, or nested too deeply", param=place) from None
    if not isinstance(arguments, dict):
        raise InvalidRequest("a JSON object", param=place)
    if lone_surrogate(arguments) is not None:
        raise InvalidRequest("half a surrogate pair, which is not a character", param=place)
    try:
        error = next(iter(_validator(tool.parameters).iter_errors(arguments)), None)
    except (ValueError, RecursionError):
        raise InvalidRequest("nested too deeply", param=place) from None
    if error is not None:
        raise InvalidRequest(f"does not fit the schema of {tool.name}: {error.message[:200]}", param=place)


def _validator(schema: Any) -> Any:
    """A schema may not refer to other documents: nothing is loaded for a line of a file."""

    def retrieve(uri: str) -> Any:
        raise ValueError(f"a reference to {uri}")

    return jsonschema_rs.validator_for(schema, retriever=retrieve)


def _as_edit(messages: Sequence[Message]) -> EditRow | None:
    """A next edit that is written as a chat: one user message in the format of `/v1/edit/completions`."""
    if len(messages) != 2 or messages[0].role != "user" or f"<|{REGION}|>" not in messages[0].content:
        return None
    request = _edit_request(messages[0].content, "messages.0.content")
    return EditRow(request, _without_fence(messages[1].content, request.region))


def _without_fence(answer: str, region: str) -> str:
    """A reply of `/v1/edit/completions` has the region in a bare fence, which the server adds: a model that learned it
    would write it twice. A region that is itself such a fence keeps it."""
    is_region = region.startswith(FENCE_OPEN) and region.rstrip("\n").endswith(FENCE_CLOSE)
    if is_region or not (answer.startswith(FENCE_OPEN) and answer.endswith(FENCE_CLOSE)):
        return answer
    return answer[len(FENCE_OPEN) : -len(FENCE_CLOSE)]


def _edit_request(text: str, place: str) -> Any:
    try:
        return parse_edit(text)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=place) from None


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise InvalidRequest("a string", param=key)
    return value


def _filled(texts: Mapping[str, str], key: str) -> str:
    if not texts[key]:
        raise InvalidRequest("empty", param=key)
    return texts[key]
