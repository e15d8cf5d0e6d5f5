"""A chat body -> the targets that may answer it, in order, and the gate between them. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from quicksilver.server.endpoints.chat.plan import EFFORTS
from quicksilver.server.endpoints.chat.wire import ChatBody, GrammarFormat, RegexFormat, TemplateFormat, TextFormat
from quicksilver.server.http.fields import join_text
from quicksilver.server.hybrid.policy import CallKind, GateSettings, HybridPolicy, Profile, RuleCondition
from quicksilver.text.chat import asks_to_think

AUTO = "auto"
AUTO_NAMES = (AUTO, *(f"{AUTO}:{profile}" for profile in Profile))
# The name of the route of a request that no rule matches.
NO_RULE = "default"
# Fields that only an engine of this server can honour. A request with one of them is not sent to an upstream.
LOCAL_FIELDS = (
    *("logprobs", "top_logprobs", "logit_bias", "choice", "diffusing", "decoder"),
    *("ignore_eos", "min_tokens"),
)


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The properties of a request that rules test."""

    profile: Profile = Profile.BALANCED
    kinds: frozenset[CallKind] = frozenset({CallKind.CHAT})
    effort: str = ""
    num_chars: int = 0
    num_messages: int = 1
    project: str = ""
    # Fields of the request that an upstream cannot honour.
    local_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallRoute:
    """The targets to try, in order. With a gate, each answer but the last is judged before it is delivered."""

    rule: str
    targets: tuple[str, ...]
    gate: GateSettings | None = None
    # Whether an answer that did not pass the gate is sent to the next target, as its predicted output.
    sends_draft: bool = False
    # Targets of the rule that are not tried, with the reason.
    skipped: dict[str, str] = field(default_factory=dict)


def profile_of(name: str) -> Profile | None:
    """The profile that a model name selects; None for a name that is not one of `AUTO_NAMES`."""
    if name not in AUTO_NAMES:
        return None
    return Profile(name.partition(":")[2] or Profile.BALANCED)


def facts_of(body: ChatBody, profile: Profile, project: str = "") -> CallFacts:
    texts = [join_text(message.content) for message in body.messages]
    tools = [orjson.dumps(tool.model_dump(exclude_none=True)).decode() for tool in body.tools or ()]
    return CallFacts(
        profile,
        kinds_of(body),
        body.reasoning_effort or "",
        sum(map(len, texts)) + sum(map(len, tools)),
        len(body.messages),
        project,
        local_fields_of(body),
    )


def kinds_of(body: ChatBody) -> frozenset[CallKind]:
    effort = body.reasoning_effort or "none"
    has_form = body.response_format is not None and not isinstance(body.response_format, TextFormat)
    found = {
        CallKind.TOOLS: bool(body.tools) and body.tool_choice != "none",
        CallKind.SCHEMA: has_form,
        CallKind.CHOICE: body.choice is not None,
        CallKind.REASONING: asks_to_think(EFFORTS.get(effort, effort)),
    }
    return frozenset(kind for kind, is_it in found.items() if is_it) or frozenset({CallKind.CHAT})


def local_fields_of(body: ChatBody) -> tuple[str, ...]:
    names = [name for name in LOCAL_FIELDS if getattr(body, name)]
    if body.prompt_logprobs is not None:
        # 0 lists the prompt's tokens without alternatives.
        names.append("prompt_logprobs")
    if isinstance(body.response_format, RegexFormat | GrammarFormat | TemplateFormat):
        names.append("response_format")
    if (body.n or 1) > 1:
        names.append("n")
    if 0 in (body.max_tokens, body.max_completion_tokens):
        names.append("max_tokens")
    return tuple(names)


def choose_route(policy: HybridPolicy, facts: CallFacts, default: str, *, may_leave: bool) -> CallRoute:
    """`default` is the model of this server that answers if nothing else does: a route always contains a model of
    this server, so a failing upstream fails no request."""
    rule = next((rule for rule in policy.rules if matches(rule.when, facts)), None)
    if rule is None:
        return CallRoute(NO_RULE, (default,))
    skipped = {name: reason for name in rule.to if (reason := _refusal(policy, name, facts, may_leave))}
    left = [name for name in rule.to if name not in skipped]
    if facts.profile is Profile.BEST:
        left.reverse()
    if all(policy.upstream(name) for name in left):
        left.append(default)
    gate = rule.gate if facts.profile is Profile.BALANCED else None
    return CallRoute(rule.name, tuple(left), gate, rule.prediction, skipped)


def matches(when: RuleCondition, facts: CallFacts) -> bool:
    return (
        (not when.kinds or bool(when.kinds & facts.kinds))
        and (not when.profiles or facts.profile in when.profiles)
        and (not when.efforts or facts.effort in when.efforts)
        and (not when.projects or facts.project in when.projects)
        and facts.num_chars >= when.min_chars
        and (when.max_chars is None or facts.num_chars <= when.max_chars)
        and facts.num_messages >= when.min_messages
    )


def _refusal(policy: HybridPolicy, name: str, facts: CallFacts, may_leave: bool) -> str | None:
    if policy.upstream(name) is None:
        return None
    if not may_leave:
        return "the project has not consented"
    if facts.local_fields:
        return f"only this server can honour {', '.join(facts.local_fields)}"
    return None
