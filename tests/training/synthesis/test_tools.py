"""Tool-calling rows."""

from __future__ import annotations

import json
import random

import jsonschema_rs

from quicksilver.training.synthesis.tools import tool_rows


def test_tool_calls_are_valid_under_the_tools_on_offer() -> None:
    num_calls = []
    for row in tool_rows(400, random.Random(1)):
        schemas = {tool.name: dict(tool.parameters) for tool in row.tools}
        calls = [call for message in row.messages for call in message.tool_calls]
        num_calls.append(len(calls))
        for call in calls:
            assert jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments))
    assert {0, 1, 2} <= set(num_calls)
