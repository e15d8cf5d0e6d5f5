"""Which targets a request may use, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.hybrid.policy import CallKind, HybridPolicy, Profile, parse_policy
from quicksilver.server.hybrid.rules import CallFacts, CallRoute, choose_route, facts_of, profile_of

TOOL = {"type": "function", "function": {"name": "look"}}


def policy(*rules: dict[str, Any]) -> HybridPolicy:
    upstream = {"name": "strong", "url": "http://h/v1", "model": "m", "price": {"input": 1, "output": 1}}
    return parse_policy({"rules": list(rules), "upstreams": [upstream]})


def body(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **fields})


def route(facts: CallFacts, *rules: dict[str, Any], may_leave: bool = True) -> CallRoute:
    return choose_route(policy(*rules), facts, "nano", may_leave=may_leave)


def test_names_select_profiles() -> None:
    assert profile_of("auto") is profile_of("auto:balanced") is Profile.BALANCED
    assert (profile_of("auto:cheap"), profile_of("auto:best")) == (Profile.CHEAP, Profile.BEST)
    assert profile_of("nano") is profile_of("auto:other") is profile_of("automatic") is None


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, {"chat"}),
        ({"tools": [TOOL]}, {"tools"}),
        ({"tools": [TOOL], "tool_choice": "none"}, {"chat"}),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, {"schema", "tools"}),
        ({"response_format": {"type": "text"}}, {"chat"}),
        ({"choice": ["a", "b"]}, {"choice"}),
        ({"reasoning_effort": "xhigh"}, {"reasoning"}),
        ({"reasoning_effort": "minimal"}, {"chat"}),
    ],
)
def test_kinds_of_calls(fields: dict[str, Any], kinds: set[str]) -> None:
    assert facts_of(body(**fields), Profile.BALANCED).kinds == {CallKind(kind) for kind in kinds}


def test_facts_count_the_characters_of_messages_and_tools() -> None:
    plain, with_tool = (facts_of(body(**extra), Profile.CHEAP, "p") for extra in ({}, {"tools": [TOOL]}))
    assert (plain.num_chars, plain.num_messages, plain.project) == (5, 1, "p")
    assert with_tool.num_chars > 5 + len("look")


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({}, True),
        ({"kinds": ["tools", "chat"]}, True),
        ({"kinds": ["tools"]}, False),
        ({"min_chars": 100}, True),
        ({"min_chars": 101}, False),
        ({"max_chars": 100}, True),
        ({"max_chars": 99}, False),
        ({"min_messages": 3}, False),
        ({"efforts": ["low"]}, True),
        ({"efforts": ["high"]}, False),
        ({"projects": ["p"]}, True),
        ({"projects": ["q"]}, False),
        ({"profiles": ["balanced"]}, True),
        ({"profiles": ["best"], "kinds": ["chat"]}, False),
    ],
)
def test_a_rule_matches_if_all_its_conditions_do(when: dict[str, Any], matches: bool) -> None:
    facts = CallFacts(effort="low", num_chars=100, num_messages=2, project="p")
    found = route(facts, {"name": "first", "when": when, "to": ["nano"]}, {"name": "second", "to": ["nano"]})
    assert found.rule == ("first" if matches else "second")


def test_a_profile_chooses_order_and_gate() -> None:
    rule = {"name": "r", "to": ["nano", "coder", "strong"], "gate": {}}
    found = {profile: route(CallFacts(profile), rule) for profile in Profile}
    assert found[Profile.CHEAP].targets == found[Profile.BALANCED].targets == ("nano", "coder", "strong")
    assert found[Profile.BEST].targets == ("strong", "coder", "nano")
    assert [found[each].gate is not None for each in Profile] == [False, True, False]


def test_a_route_ends_with_a_model_of_this_server() -> None:
    rule = {"name": "r", "to": ["strong"]}
    assert route(CallFacts(), rule).targets == ("strong", "nano")
    assert route(CallFacts(), {"name": "r", "to": ["strong", "coder"]}).targets == ("strong", "coder")
    assert route(CallFacts(), {"name": "r", "when": {"min_chars": 9}, "to": ["strong"]}).targets == ("nano",)


def test_without_consent_no_upstream_is_part_of_a_route() -> None:
    found = route(CallFacts(), {"name": "r", "to": ["strong"]}, may_leave=False)
    assert found.targets == ("nano",)
    assert found.skipped == {"strong": "the project has not consented"}


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"n": 2},
        {"max_tokens": 0},
        {"diffusing": True},
        {"choice": ["a", "b"]},
        {"decoder": {"name": "ar"}},
        {"logit_bias": {"1": 1.0}},
        {"min_tokens": 3},
        {"prompt_logprobs": 0},
        {"response_format": {"type": "regex", "pattern": "a+"}},
    ],
)
def test_a_request_that_needs_this_server_stays_here(fields: dict[str, Any]) -> None:
    found = route(facts_of(body(**fields), Profile.BEST), {"name": "r", "to": ["nano", "strong"]})
    assert found.targets == ("nano",)
    assert next(iter(fields)) in found.skipped["strong"]
