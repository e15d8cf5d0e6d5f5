"""An agent loop: one growing conversation in which every step is a tool call.

The tools are a calculator, a price list and a note file. `tool_choice="required"` makes every answer a call with valid
arguments. The prompt of each call is the conversation so far, so most of it comes from the prompt cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from examples.measure import Chat, compare, connect, parser

PRICES = {"apple": 3, "bread": 4, "cheese": 9, "milk": 2, "rice": 5, "tea": 6}
SYSTEM = (
    "You are the assistant of a small shop. Answer every request with one tool call. Use look_up for the price of an "
    "item, add for sums, and write_note to remember something. Take the arguments from the request."
)


def tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
TOOLS = [
    tool("look_up", "The price of an item.", item={"type": "string", "enum": sorted(PRICES)}),
    tool("add", "The sum of two numbers.", a=NUMBER, b=NUMBER),
    tool("write_note", "Append a line to the note file.", text={"type": "string", "maxLength": 60}),
]


@dataclass
class Shop:
    """Runs the calls. A call with arguments outside its schema raises."""

    notes: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        self.called.append(name)
        if name == "look_up":
            return f"{arguments['item']} costs {PRICES[arguments['item']]}"
        if name == "add":
            return str(arguments["a"] + arguments["b"])
        self.notes.append(arguments["text"])
        return f"{len(self.notes)} notes"


def requests(num_steps: int) -> list[str]:
    items = sorted(PRICES)
    kinds = (
        lambda i: f"What is the price of {items[i % len(items)]}?",
        lambda i: f"Add {3 * i + 2} and {i + 5}.",
        lambda i: f"Write a note: order {items[i % len(items)]} on day {i}.",
    )
    return [kinds[i % 3](i) for i in range(num_steps)]


def run(chat: Chat, num_steps: int = 50) -> Shop:
    shop, conversation = Shop(), [{"role": "system", "content": SYSTEM}]
    for request in requests(num_steps):
        conversation.append({"role": "user", "content": request})
        message = chat.ask(conversation, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=96)
        (call,) = message.tool_calls
        result = shop.run(call.function.name, json.loads(call.function.arguments))
        conversation.append(message.model_dump(include={"role", "content", "tool_calls"}))
        conversation.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return shop


def cached_share(chat: Chat, first_call: int = 3) -> float:
    """Cached prompt tokens over all prompt tokens, from a call on (counted from 1)."""
    usages = [reply.usage for reply in chat.replies[first_call - 1 :]]
    return sum(u.prompt_tokens_details.cached_tokens for u in usages) / sum(u.prompt_tokens for u in usages)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=50)
    arguments = options.parse_args()
    chat = connect(arguments)
    shop = compare(chat, lambda chat: run(chat, arguments.steps))
    expected = [("look_up", "add", "write_note")[i % 3] for i in range(arguments.steps)]
    right = sum(a == b for a, b in zip(shop.called, expected, strict=True))
    print(f"{right} of {len(expected)} calls of the expected tool; {len(shop.notes)} notes")
    print(f"prompt tokens from the cache, from call 3 on: {cached_share(chat):.0%}")


if __name__ == "__main__":
    main()
