"""A chat body -> a ReplyPlan: messages and tools, prompt ids, limits, sampling, grammar and output validator.

The role `developer` becomes system, `function` becomes tool, and parts are joined to one text. Nothing is fetched. A
message that cannot be rendered is refused with its position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from quicksilver.constrain.pinned import Hole, pinned_grammar
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
from quicksilver.core import DecodeParams, Request, ThinkBudget
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.wire import (
    AllowedToolChoice,
    ChatBody,
    ChatMessage,
    GrammarFormat,
    HolePart,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    TemplateFormat,
)
from quicksilver.server.generation.grammar import OutputValidator, compile_grammar
from quicksilver.server.generation.plan import (
    AnswerRequest,
    EndRules,
    ReplyPlan,
    TokenLimit,
    add_warning,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_logit_bias,
    read_prediction,
    read_seed,
    read_stop,
    read_top_k,
    with_given,
)
from quicksilver.server.generation.prompt_scores import ScoredPromptRequest
from quicksilver.server.http.fields import FunctionSpec, NamedTool, join_text
from quicksilver.server.services import Services
from quicksilver.text.answer import ReadOptions
from quicksilver.text.chat import RenderedPrompt, asks_to_think, limit_thinking
from quicksilver.text.conversation import Message, PromptRequest, Role, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# OpenAI's names of efforts that have another name here.
EFFORTS = {"minimal": "instant", "xhigh": "high"}
# The field of each format beyond OpenAI's that holds its text.
FORMAT_FIELDS = {"regex": "pattern", "grammar": "grammar", "template": "parts"}
# Most tool calls in one answer that may call tools in parallel.
MAX_CALLS = 16
NO_INPUTS: Mapping[str, ResponseFormat] = {}


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The tools that an answer may call, and whether it must call one."""

    specs: tuple[FunctionSpec, ...] = ()
    is_required: bool = False
    allows_parallel: bool = True
    # The caller named the one tool to call.
    is_named: bool = False

    @property
    def choice(self) -> ToolChoice:
        if self.is_named:
            return ToolChoice.NAMED
        return ToolChoice.REQUIRED if self.is_required else ToolChoice.AUTO

    @property
    def names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.specs)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(Tool(spec.name, spec.description or "", spec.parameters or {}) for spec in self.specs)


async def plan_chat(
    body: ChatBody, services: Services, tenant: str, inputs: Mapping[str, ResponseFormat] = NO_INPUTS
) -> ReplyPlan:
    """`inputs` names the tools that take plain text, each with the format of the text."""
    tools, effort = read_tools(body), read_effort(body, services)
    prompt = await render(body, tools, effort, services, tenant)
    requested = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    limit = limit_tokens(len(prompt.ids), requested, services, "messages")
    may_open = asks_to_think(effort) and services.template.can_think
    banned = banned_ids(prompt, tools, services.tokenizer, may_open_thinking=may_open)
    params = read_params(body, limit, banned, services)
    thinking = find_thinking(prompt, services.tokenizer)
    constraint = find_constraint(body, tools, services.tool_tags, thinking, inputs)
    compiled = None
    if constraint is not None:
        compiled = await compile_grammar(constraint.source, services.grammars, tenant, constraint.param)
    request = Request(
        id="",
        prompt_ids=prompt.ids,
        params=params,
        tenant=tenant,
        constraint=read_ends(body).constraint(params.stop_ids, params.max_new_tokens, compiled),
        think=find_budget(prompt, effort, limit, services),
        wants_frames=bool(body.stream and body.diffusing),
        prediction=await read_prediction(body.prediction, services, tenant),
    )
    options = ReadOptions(
        stop=read_stop(body.stop),
        tool_names=tools.names,
        text_tools=frozenset(inputs),
        call_padding=services.tool_tags.padding,
        opens_thinking=prompt.opens_thinking,
        max_calls=None if tools.allows_parallel else 1,
        find_fault=constraint.validator.find_fault if constraint and constraint.validator else None,
    )
    warning = add_warning(limit.warning, effort_warning(body, services))
    answer = AnswerRequest(request, options)
    if body.prompt_logprobs is not None:
        if body.stream:
            raise InvalidRequest("prompt_logprobs: not in a stream", param="prompt_logprobs")
        answer = ScoredPromptRequest(request, options, body.prompt_logprobs)
    return plan_reply("chatcmpl", body.model, [answer], body.n or 1, warning)


def read_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    return [_read_message(message, f"messages.{i}") for i, message in enumerate(messages)]


def _read_message(message: ChatMessage, place: str) -> Message:
    calls = tuple(
        ToolCall(call.function.name, call.function.arguments, call.id or "") for call in message.tool_calls or ()
    )
    if message.content is None and message.role not in ("assistant", "function"):
        raise InvalidRequest(f"{place}.content: a {message.role} message needs content", param=f"{place}.content")
    if calls and message.role != "assistant":
        raise InvalidRequest(f"{place}.tool_calls: only the assistant calls tools", param=f"{place}.tool_calls")
    return Message(
        role=ROLES[message.role],
        content=join_text(message.content),
        reasoning=message.reasoning_content or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def read_tools(body: ChatBody) -> ToolOptions:
    """`tool_choice` is a word, or an object that names the tools that may be called."""
    specs, choice = tuple(tool.function for tool in body.tools or ()), body.tool_choice
    allows_parallel = body.parallel_tool_calls is not False
    _refuse_duplicates(specs)
    if choice == "none":
        return ToolOptions()
    if isinstance(choice, NamedTool):
        return ToolOptions(_only(specs, {choice.function.name}), is_required=True, allows_parallel=False, is_named=True)
    if isinstance(choice, AllowedToolChoice):
        specs = _only(specs, {tool.function.name for tool in choice.allowed_tools.tools})
        is_required = choice.allowed_tools.mode == "required"
    else:
        is_required = choice == "required"
    if is_required and not specs:
        raise InvalidRequest("tool_choice: a call is required but no tools are given", param="tool_choice")
    return ToolOptions(specs, is_required, allows_parallel)


def _refuse_duplicates(specs: tuple[FunctionSpec, ...]) -> None:
    names = [spec.name for spec in specs]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidRequest(f"tools.{i}: the name {name} comes twice", param=f"tools.{i}.function.name")


def _only(specs: tuple[FunctionSpec, ...], names: set[str]) -> tuple[FunctionSpec, ...]:
    chosen = tuple(spec for spec in specs if spec.name in names)
    if missing := names - {spec.name for spec in chosen}:
        raise InvalidRequest(f"tool_choice: no tool is named {min(missing)}", param="tool_choice")
    return chosen


def read_ends(body: ChatBody) -> EndRules:
    return EndRules(bool(body.ignore_eos), body.min_tokens or 0)


async def render(
    body: ChatBody, tools: ToolOptions, effort: str | None, services: Services, tenant: str
) -> RenderedPrompt:
    request = PromptRequest(tuple(read_messages(body.messages)), tools.tools, effort)
    return await services.prompts.render(request, tenant)


def with_effort(body: ChatBody) -> ChatBody:
    """With the effort that `enable_thinking` stands for, if the request names no effort."""
    options = body.chat_template_kwargs
    if body.reasoning_effort is not None or options is None or options.enable_thinking is None:
        return body
    return body.model_copy(update={"reasoning_effort": "medium" if options.enable_thinking else "none"})


class EffortBody(Protocol):
    @property
    def reasoning_effort(self) -> str | None: ...


def read_effort(body: EffortBody, services: Services) -> str | None:
    effort = body.reasoning_effort or services.config.reasoning_effort
    return EFFORTS.get(effort, effort) if effort else None


def effort_warning(body: ChatBody, services: Services) -> str | None:
    """A warning if the request asks for reasoning and this model's prompt format has none."""
    effort = EFFORTS.get(body.reasoning_effort, body.reasoning_effort) if body.reasoning_effort else None
    if not asks_to_think(effort) or services.template.can_think:
        return None
    return "reasoning_effort has no effect: this model's chat template has no reasoning"


def read_params(body: ChatBody, limit: TokenLimit, banned: tuple[int, ...], services: Services) -> DecodeParams:
    info, tokenizer = services.engine.info, services.tokenizer
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    return with_given(
        DecodeParams(
            temperature=services.config.temperature,
            stop_ids=read_ends(body).stop_ids(tokenizer.eos_ids),
            banned_ids=banned,
        ),
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


def banned_ids(
    prompt: RenderedPrompt, tools: ToolOptions, tokenizer: Tokenizer, *, may_open_thinking: bool
) -> tuple[int, ...]:
    """Special tokens without a meaning in this answer: they decode to nothing, or open a section that is not read.
    Some models open the thinking section themselves, if their prompt asks for it."""
    roles = tokenizer.roles
    useful: set[int | None] = {*tokenizer.eos_ids}
    useful |= {roles.think_close} if prompt.opens_thinking else set()
    useful |= {roles.think_open, roles.think_close} if may_open_thinking and not prompt.opens_thinking else set()
    useful |= {roles.tool_open, roles.tool_close} if tools.specs else set()
    return tuple(sorted(tokenizer.mute_ids - useful))


def find_budget(
    prompt: RenderedPrompt, effort: str | None, limit: TokenLimit, services: Services
) -> ThinkBudget | None:
    close_id = services.tokenizer.roles.think_close
    if not prompt.opens_thinking or close_id is None:
        return None
    return limit_thinking(effort, limit.max_new_tokens, close_id, services.tokenizer.encode)


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
    body: ChatBody,
    tools: ToolOptions,
    tags: ToolTags,
    thinking: Thinking | None,
    inputs: Mapping[str, ResponseFormat] = NO_INPUTS,
) -> OutputConstraint | None:
    form = read_format(body)
    schema = _schema_of(form)
    if not tools.specs:
        if form is None:
            return None
        validator = OutputValidator(schema) if schema is not None else None
        field = FORMAT_FIELDS.get(getattr(body.response_format, "type", ""))
        param = f"response_format.{field}" if field else "response_format"
        return OutputConstraint(replace(form, thinking=thinking), validator, param)
    source = ToolCallFormat(
        tools=tuple(
            ToolSignature(spec.name, spec.parameters, bool(spec.strict), inputs.get(spec.name)) for spec in tools.specs
        ),
        tags=tags,
        choice=tools.choice,
        max_calls=MAX_CALLS if tools.allows_parallel else 1,
        answer=form,
        thinking=thinking,
    )
    schemas = {
        spec.name: spec.parameters for spec in tools.specs if spec.name not in inputs and spec.parameters is not None
    }
    validator = OutputValidator(schema, schemas, requires_call=tools.is_required)
    return OutputConstraint(source, validator, "tools")


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
    if isinstance(form, TemplateFormat):
        return ResponseFormat(FormatKind.LARK, pinned_grammar([read_part(part) for part in form.parts]))
    return None


def read_part(part: str | HolePart) -> str | Hole:
    if isinstance(part, str):
        return part
    if part.min_chars > part.max_chars:
        raise InvalidRequest("response_format.parts: min_chars exceeds max_chars", param="response_format.parts")
    return Hole(part.min_chars, part.max_chars, part.multiline)


def _schema_of(form: ResponseFormat | None) -> Any:
    if form is None:
        return None
    if form.kind is FormatKind.JSON_OBJECT:
        return {"type": "object"}
    return form.value if form.kind is FormatKind.JSON_SCHEMA else None
