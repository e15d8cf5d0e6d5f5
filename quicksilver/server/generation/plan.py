"""A checked body -> a Plan: prompt ids, limits, seeds, constraint; all that is decided before the engine hears of it.

Prompts are encoded by `services.prompts`, off the event loop.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quicksilver.constrain.source import Thinking
from quicksilver.core import DecodeParams, Request, ThinkBudget
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.endpoints.chat.prompt import ToolPlan, plan_tools, read_messages
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.answer import Ask
from quicksilver.server.generation.constraint import compile_constraint, find_constraint
from quicksilver.server.generation.sampling import overlay, pick_bias, pick_decoder, pick_seed, pick_top_k
from quicksilver.server.services import Services
from quicksilver.text.chat import RenderedPrompt
from quicksilver.text.conversation import PromptRequest
from quicksilver.text.reasoning_effort import think_budget
from quicksilver.text.tokenizer import Tokenizer

EFFORTS = {"minimal": "instant", "xhigh": "high"}
"""OpenAI's outer names, in our terms."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One reply to make: `asks` holds an answer each."""

    id: str
    model: str
    asks: tuple[Ask, ...]
    created: int
    num_answers: int = 1
    """Answers to each prompt; `asks` holds them prompt by prompt."""
    warning: str | None = None
    num_scored: int | None = None
    """Tokens of all labels of a `choice`: they are reserved in place of an answer."""

    @property
    def num_prompt(self) -> int:
        return sum(len(ask.request.prompt_ids) for ask in self.asks[:: self.num_answers])

    @property
    def max_output(self) -> int:
        if self.num_scored is not None:
            return self.num_scored
        return sum(ask.request.params.max_new_tokens for ask in self.asks)


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens the answer may have, and what the caller should know about it."""

    max_new_tokens: int
    warning: str | None = None


async def plan_chat(body: ChatBody, services: Services, tenant: str) -> Plan:
    services.directory.check(body.model)
    tools = plan_tools(body)
    effort = pick_effort(body, services)
    prompt = await render(body, tools, effort, services, tenant)
    room = find_room(len(prompt.ids), body.max_completion_tokens or body.max_tokens, services, "messages")
    ask = Ask(
        request=Request(
            id="",
            prompt_ids=prompt.ids,
            params=chat_params(body, room, services),
            tenant=tenant,
            think=find_budget(prompt, effort, room, services),
            wants_frames=bool(body.stream and body.diffusing),
        ),
        stop=read_stop(body.stop),
        tool_names=tools.names,
        opens_thinking=prompt.opens_thinking,
        max_calls=None if tools.allows_parallel else 1,
    )
    ask = await constrain(ban_tags(ask, services.tokenizer), body, tools, services)
    return make_plan("chatcmpl", body.model, [ask], body.n or 1, room.warning)


async def render(
    body: ChatBody, tools: ToolPlan, effort: str | None, services: Services, tenant: str
) -> RenderedPrompt:
    request = PromptRequest(tuple(read_messages(body.messages)), tuple(tools.tools), effort)
    return await services.prompts.render(request, tenant)


def make_plan(prefix: str, model: str, asks: Sequence[Ask], num_answers: int = 1, warning: str | None = None) -> Plan:
    """`num_answers` copies of every ask, each with an id and a seed of its own."""
    reply_id = f"{prefix}-{uuid.uuid4()}"
    copies = [replace_seed(ask, i) for ask in asks for i in range(num_answers)]
    named = tuple(name_ask(ask, f"{reply_id}/{i}") for i, ask in enumerate(copies))
    return Plan(reply_id, model, named, int(time.time()), num_answers, warning)


def replace_seed(ask: Ask, offset: int) -> Ask:
    params = replace(ask.request.params, seed=ask.request.params.seed + offset)
    return replace(ask, request=replace(ask.request, params=params))


def name_ask(ask: Ask, name: str) -> Ask:
    return replace(ask, request=replace(ask.request, id=name))


def pick_effort(body: ChatBody, services: Services) -> str | None:
    effort = body.reasoning_effort or services.config.reasoning_effort
    return EFFORTS.get(effort, effort) if effort else None


def find_room(num_prompt: int, asked: int | None, services: Services, param: str) -> Room:
    """A limit beyond the context is lowered to what fits, and said so; a prompt that leaves no room is refused."""
    context_len = services.engine.info.context_len
    left = context_len - num_prompt
    if left < 1:
        raise ContextTooLong(
            f"The prompt has {num_prompt} tokens; this model's context is {context_len} tokens, answer included.",
            param=param,
        )
    if asked is not None and asked > left:
        return Room(left, f"max_tokens was lowered to {left}, the room left in this model's context")
    return Room(min(asked or services.config.card.max_output_len, left))


def find_budget(prompt: RenderedPrompt, effort: str | None, room: Room, services: Services) -> ThinkBudget | None:
    close_id = services.tokenizer.roles.think_close
    if not prompt.opens_thinking or close_id is None:
        return None
    return ThinkBudget((close_id,), think_budget(effort, room.max_new_tokens))


def chat_params(body: ChatBody, room: Room, services: Services) -> DecodeParams:
    info = services.engine.info
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    defaults = DecodeParams(temperature=services.config.temperature, stop_ids=services.tokenizer.eos_ids)
    return overlay(
        defaults,
        {
            "max_new_tokens": room.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": pick_top_k(body.top_k),
            "min_p": body.min_p,
            "seed": pick_seed(body.seed),
            "logit_bias": pick_bias(body.logit_bias, info),
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "repetition_penalty": body.repetition_penalty,
            "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
            "decoder": pick_decoder(body.decoder, is_realtime=bool(body.realtime), info=info),
        },
    )


def read_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


async def constrain(ask: Ask, body: ChatBody, tools: ToolPlan, services: Services) -> Ask:
    """The ask with the grammar that its tools and format call for, compiled here and refused here."""
    close_id = services.tokenizer.roles.think_close
    thinking = Thinking(close_id) if ask.opens_thinking and close_id is not None else None
    constraint = find_constraint(body, tools, services.tool_tags, thinking)
    if constraint is None:
        return ask
    spec = await compile_constraint(constraint, services.grammars, ask.request.tenant)
    return replace(ask, request=replace(ask.request, constraint=spec), check=constraint.check)


def ban_tags(ask: Ask, tokenizer: Tokenizer) -> Ask:
    """Special tokens that have no place in this answer: they would decode to nothing, or open what nobody reads."""
    roles = tokenizer.roles
    useful: set[int | None] = {*ask.request.params.stop_ids}
    useful |= {roles.think_close} if ask.opens_thinking else set()
    useful |= {roles.tool_open, roles.tool_close} if ask.tool_names else set()
    banned = tuple(sorted(tokenizer.mute_ids - useful))
    return replace(ask, request=replace(ask.request, params=replace(ask.request.params, banned_ids=banned)))
