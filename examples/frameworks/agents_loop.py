"""The agent loop of `examples.agent_loop` with the OpenAI Agents SDK: 50 tool calls in one conversation.

Each step is one run of the agent, which ends with its first tool call. The conversation grows, so the prompt of every
step but the first two comes mostly from the prompt cache.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    TResponseInputItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from examples.agent_loop import PRICES, SYSTEM, Shop, requests
from examples.frameworks.counters import compare, parser, with_decoder

Item = Literal["apple", "bread", "cheese", "milk", "rice", "tea"]
set_tracing_disabled(True)


@dataclass
class Loop:
    """The shop after the loop, and the prompt tokens of each step with the cached ones among them."""

    shop: Shop = field(default_factory=Shop)
    prompts: list[tuple[int, int]] = field(default_factory=list)

    def cached_share(self, first_step: int = 3) -> float:
        """Cached prompt tokens over all prompt tokens, from a step on (counted from 1)."""
        counted = self.prompts[first_step - 1 :]
        return sum(cached for _, cached in counted) / sum(total for total, _ in counted)


def agent_of(client: AsyncOpenAI, model: str, decoder: str, shop: Shop) -> Agent:
    @function_tool
    def look_up(item: Item) -> str:
        """The price of an item."""
        return shop.run("look_up", {"item": item})

    @function_tool
    def add(a: int, b: int) -> str:
        """The sum of two numbers."""
        return shop.run("add", {"a": a, "b": b})

    @function_tool
    def write_note(text: str) -> str:
        """Append a line to the note file."""
        return shop.run("write_note", {"text": text})

    settings = ModelSettings(
        temperature=0,
        max_tokens=128,
        tool_choice="required",
        parallel_tool_calls=False,
        extra_body=with_decoder(decoder),
    )
    return Agent(
        "shop",
        instructions=SYSTEM,
        model=OpenAIChatCompletionsModel(model, client),
        model_settings=settings,
        tools=[look_up, add, write_note],
        tool_use_behavior="stop_on_first_tool",
        reset_tool_choice=False,
    )


async def run(client: AsyncOpenAI, model: str, decoder: str = "verify", num_steps: int = 50) -> Loop:
    loop = Loop()
    agent = agent_of(client, model, decoder, loop.shop)
    conversation: list[TResponseInputItem] = []
    for request in requests(num_steps):
        result = await Runner.run(agent, [*conversation, {"role": "user", "content": request}])
        conversation = result.to_input_list()
        (response,) = result.raw_responses
        loop.prompts.append((response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens))
    return loop


async def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=50)
    arguments = options.parse_args()
    async with AsyncOpenAI(base_url=f"{arguments.url}/v1", api_key=arguments.key, timeout=600) as client:
        loop = await compare(
            arguments.admin_url,
            lambda decoder: run(client, arguments.model, decoder, arguments.steps),
            arguments.metrics_key,
        )
    print(f"{len(loop.shop.called)} tool calls; {len(loop.shop.notes)} notes; {len(PRICES)} items in the price list")
    print(f"prompt tokens from the cache, from step 3 on: {loop.cached_share():.0%}")


if __name__ == "__main__":
    asyncio.run(main())
