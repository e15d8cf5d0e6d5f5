"""A chat body -> a ReplyPlan: prompt ids, limits, sampling, grammar and output validator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quicksilver.constrain.source import (
    FormatKind,
    GrammarSource,
    Layout,
    Policy,
    ResponseFormat,
    Thinking,
    ToolCallFormat,
    ToolChoice,
    ToolSignature,
    ToolTags,
)
from quicksilver.core import ConstraintSpec, DecodeParams, Request, ThinkBudget
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.prompt import ToolOptions, read_messages, read_tools
from quicksilver.server.endpoints.chat.wire import (
    ChatBody,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
)
from quicksilver.server.generation.grammar import OutputValidator, compile_grammar
from quicksilver.server.generation.plan import (
    AnswerRequest,
    ReplyPlan,
    TokenLimit,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_logit_bias,
    read_seed,
    read_stop,
    read_top_k,
    with_given,
)
from quicksilver.server.http.fields import FunctionSpec
from quicksilver.server.services import Services
from quicksilver.text.answer import ReadOptions
from quicksilver.text.chat import RenderedPrompt
from quicksilver.text.conversation import PromptRequest
from quicksilver.text.reasoning_effort import think_budget
from quicksilver.text.tokenizer import Tokenizer

# OpenAI's names of efforts that have another name here.
EFFORTS = {"minimal": "instant", "xhigh": "high"}
# In one answer that may call tools in parallel.
MAX_CALLS = 16


async def plan_chat(body: ChatBody, services: Services, tenant: str) -> ReplyPlan:
    services.directory.check(body.model)
    tools, effort = read_tools(body), read_effort(body, services)
    prompt = await render(body, tools, effort, services, tenant)
    limit = limit_tokens(len(prompt.ids), body.max_completion_tokens or body.max_tokens, services, "messages")
    params = read_params(body, limit, banned_ids(prompt, tools, services.tokenizer), services)
    constraint = find_constraint(body, tools, services.tool_tags, find_thinking(prompt, services.tokenizer))
    request = Request(
        id="",
        prompt_ids=prompt.ids,
        params=params,
        tenant=tenant,
        constraint=await compile_constraint(constraint, services, tenant) if constraint else None,
        think=find_budget(prompt, effort, limit, services),
        wants_frames=bool(body.stream and body.diffusing),
    )
    options = ReadOptions(
        stop=read_stop(body.stop),
        tool_names=tools.names,
        opens_thinking=prompt.opens_thinking,
        max_calls=None if tools.allows_parallel else 1,
        find_fault=constraint.validator.find_fault if constraint and constraint.validator else None,
    )
    return plan_reply("chatcmpl", body.model, [AnswerRequest(request, options)], body.n or 1, limit.warning)


async def render(
    body: ChatBody, tools: ToolOptions, effort: str | None, services: Services, tenant: str
) -> RenderedPrompt:
    request = PromptRequest(tuple(read_messages(body.messages)), tools.tools, effort)
    return await services.prompts.render(request, tenant)


def read_effort(body: ChatBody, services: Services) -> str | None:
    effort = body.reasoning_effort or services.config.reasoning_effort
    return EFFORTS.get(effort, effort) if effort else None


def read_params(body: ChatBody, limit: TokenLimit, banned: tuple[int, ...], services: Services) -> DecodeParams:
    info, tokenizer = services.engine.info, services.tokenizer
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    return with_given(
        DecodeParams(temperature=services.config.temperature, stop_ids=tokenizer.eos_ids, banned_ids=banned),
        {
            "max_new_tokens": limit.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": read_top_k(body.top_k),
            "min_p": body.min_p,
            "seed": read_seed(body.seed),
            "logit_bias": read_logit_bias(body.logit_bias, info),
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "repetition_penalty": body.repetition_penalty,
            "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
            "decoder": read_decoder(body.decoder, is_realtime=bool(body.realtime), info=info),
        },
    )


def banned_ids(prompt: RenderedPrompt, tools: ToolOptions, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Special tokens without a meaning in this answer: they decode to nothing, or open a section that is not read."""
    roles = tokenizer.roles
    useful: set[int | None] = {*tokenizer.eos_ids}
    useful |= {roles.think_close} if prompt.opens_thinking else set()
    useful |= {roles.tool_open, roles.tool_close} if tools.specs else set()
    return tuple(sorted(tokenizer.mute_ids - useful))


def find_budget(
    prompt: RenderedPrompt, effort: str | None, limit: TokenLimit, services: Services
) -> ThinkBudget | None:
    close_id = services.tokenizer.roles.think_close
    if not prompt.opens_thinking or close_id is None:
        return None
    return ThinkBudget((close_id,), think_budget(effort, limit.max_new_tokens))


def find_thinking(prompt: RenderedPrompt, tokenizer: Tokenizer) -> Thinking | None:
    """The section that the prompt leaves open, if any: the grammar begins after it."""
    close_id = tokenizer.roles.think_close
    return Thinking(close_id) if prompt.opens_thinking and close_id is not None else None


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """The grammar that an answer must follow, and the validator of the finished output."""

    source: GrammarSource
    validator: OutputValidator | None
    # The request field to name if the grammar is refused.
    param: str


def find_constraint(
    body: ChatBody, tools: ToolOptions, tags: ToolTags, thinking: Thinking | None
) -> OutputConstraint | None:
    form = read_format(body)
    schema = _schema_of(form)
    if not tools.specs:
        if form is None:
            return None
        validator = OutputValidator(schema) if schema is not None else None
        return OutputConstraint(replace(form, thinking=thinking), validator, "response_format")
    source = ToolCallFormat(
        tools=tuple(ToolSignature(spec.name, spec.parameters, bool(spec.strict)) for spec in tools.specs),
        tags=tags,
        choice=_choice(tools),
        max_calls=MAX_CALLS if tools.allows_parallel else 1,
        answer=form,
        thinking=thinking,
    )
    validator = OutputValidator(schema, _argument_schemas(tools.specs), requires_call=tools.is_required)
    return OutputConstraint(source, validator, "tools")


async def compile_constraint(constraint: OutputConstraint, services: Services, tenant: str) -> ConstraintSpec:
    return await compile_grammar(constraint.source, services.grammars, tenant, constraint.param)


def read_format(body: ChatBody) -> ResponseFormat | None:
    form = body.response_format
    if isinstance(form, JsonObjectFormat):
        return ResponseFormat(FormatKind.JSON_OBJECT, layout=Layout.SPACED)
    if isinstance(form, JsonSchemaFormat):
        policy = Policy.GUARANTEED if form.json_schema.strict else Policy.VALIDATED
        schema = form.json_schema.schema_
        return ResponseFormat(FormatKind.JSON_SCHEMA, {} if schema is None else schema, policy, Layout.SPACED)
    if isinstance(form, RegexFormat):
        return ResponseFormat(FormatKind.REGEX, form.pattern)
    if isinstance(form, GrammarFormat):
        return ResponseFormat(FormatKind.LARK, form.grammar)
    return None


def _choice(tools: ToolOptions) -> ToolChoice:
    if tools.is_named:
        return ToolChoice.NAMED
    return ToolChoice.REQUIRED if tools.is_required else ToolChoice.AUTO


def _schema_of(form: ResponseFormat | None) -> Any:
    if form is None:
        return None
    if form.kind is FormatKind.JSON_OBJECT:
        return {"type": "object"}
    return form.value if form.kind is FormatKind.JSON_SCHEMA else None


def _argument_schemas(specs: tuple[FunctionSpec, ...]) -> dict[str, Any]:
    return {spec.name: spec.parameters for spec in specs if spec.parameters is not None}
