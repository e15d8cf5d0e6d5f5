"""Tool calls: turns of a dialogue, and scores of calls."""

from __future__ import annotations

import json

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    tools,
)
from quicksilver.text.conversation import ToolCall
from tests.evals.build import skilled_writer

DIALOGUE = {
    "tools": [{"name": "FindBus", "description": "Find a bus", "parameters": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "A bus to Rome tomorrow"},
        {"role": "assistant", "tool_calls": [{"name": "FindBus", "arguments": {"to": "Rome", "on": "2019-03-02"}}]},
        {"role": "tool", "content": [{"fare": "3"}]},
        {"role": "assistant", "content": "It costs 3."},
    ],
}


def test_dialogue_gives_a_turn_with_a_call_and_one_without() -> None:
    called, silent = tools.dialogue_turns(DIALOGUE, 0)
    assert (called.name, len(called.messages), silent.name, len(silent.messages)) == ("FindBus", 1, "", 3)
    assert tools.ask(called, skilled_writer()).tool_names == {"FindBus"}
    assert [turn.name for turn in tools.dialogue_turns(DIALOGUE, 1)] == ["FindBus"]


def test_call_needs_name_and_every_argument() -> None:
    called, silent = tools.dialogue_turns(DIALOGUE, 0)

    def scored(*calls: ToolCall) -> dict[str, float]:
        return dict(tools.score(called, Answer(calls=calls)))

    right = ToolCall("FindBus", '{"on": "2019-03-02", "to": "rome"}')
    assert scored(right) == {"call": 1.0, "name": 1.0}
    assert scored(ToolCall("FindBus", '{"to": "Rome"}')) == {"call": 0.0, "name": 1.0}
    assert scored(ToolCall("FindBus", '{"to": "Rome", "on": "2019-03-02", "at": "9"}'))["call"] == 0.0
    assert scored(ToolCall("FindBus", "{")) == {"call": 0.0, "name": 1.0}
    assert scored() == scored(right, right) == {"call": 0.0, "name": 0.0}
    assert tools.score(silent, Answer("hello")) == {"no_call": 1.0}
    assert tools.score(silent, Answer(calls=(right,))) == {"no_call": 0.0}


def test_call_whose_values_are_all_said_counts_as_stated() -> None:
    said = json.loads(json.dumps(DIALOGUE).replace("2019-03-02", "tomorrow"))
    (turn,) = tools.dialogue_turns(said, 1)
    answer = Answer(calls=(ToolCall("FindBus", '{"to": "Rome", "on": "tomorrow"}'),))
    assert tools.score(turn, answer) == {"call": 1.0, "name": 1.0, "call_stated": 1.0}


def test_bfcl_lets_optional_arguments_be_absent() -> None:
    function = {"name": "area", "description": "", "parameters": {"type": "dict", "properties": {}}}
    row = {"id": "1", "question": [[{"role": "user", "content": "Area?"}]], "function": [function]}
    turn = tools.bfcl_turn(row, {"ground_truth": [{"area": {"base": [10], "unit": ["cm", ""]}}]})
    assert turn.tools[0].parameters["type"] == "object"
    assert tools.score(turn, Answer(calls=(ToolCall("area", '{"base": 10}'),)))["call"] == 1.0
    assert tools.score(turn, Answer(calls=(ToolCall("area", '{"base": 10, "unit": "m"}'),)))["call"] == 0.0
    assert tools.bfcl_turn(row, None).name == ""
