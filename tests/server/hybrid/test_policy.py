"""The `[hybrid]` table: what it accepts, and what it refuses with the place of the error."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from quicksilver.accounts.records import Price
from quicksilver.errors import InvalidRequest
from quicksilver.server.hybrid.policy import CallKind, HybridPolicy, Profile, parse_policy, read_key

FULL = """
anonymous_may_leave = true
[[upstreams]]
name = "strong"
url = "https://llm.example.com/v1"
model = "big"
key_env = "STRONG_KEY"
price = { input = 3, output = 15 }
[[rules]]
name = "agents"
when = { kinds = ["tools"], profiles = ["best"], min_chars = 4000, projects = ["proj_1"] }
to = ["nano", "strong"]
gate = { mean_logprob = -0.4, min_logprob = -4, acceptance = 0.5, question = "Is it right?" }
"""


def full(**changes: Any) -> HybridPolicy:
    return parse_policy({**tomllib.loads(FULL), **changes})


def upstream(**changes: Any) -> dict[str, Any]:
    return {**tomllib.loads(FULL)["upstreams"][0], **changes}


def test_a_full_table_is_read() -> None:
    policy = full()
    policy.check(["nano"])
    rule, strong = policy.rules[0], policy.upstream("strong")
    assert (rule.when.kinds, rule.when.profiles) == ({CallKind.TOOLS}, {Profile.BEST})
    assert rule.gate is not None
    assert (rule.gate.acceptance, rule.gate.complete, rule.gate.question_probability) == (0.5, True, 0.5)
    assert strong is not None
    assert strong.price.price == Price(3, 3, 15)
    assert policy.upstream("nano") is None


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"rules": []}, "rules"),
        ({"rules": [{"name": "x", "to": []}]}, r"rules\[0\].to"),
        ({"rules": [{"name": "x", "to": ["nano"], "whem": {}}]}, "whem"),
        ({"rules": [{"name": "x", "to": ["nano"], "gate": {"mean_logprob": 0.5}}]}, "mean_logprob"),
        ({"rules": [{"name": "x", "to": ["nano"], "when": {"kinds": ["tool"]}}]}, "kinds"),
        ({"upstreams": [upstream(price={"input": 1})]}, "price"),
        ({"upstreams": [upstream(idle_s=0)]}, "idle_s"),
        ({"upstreams": [upstream(name="a b")]}, "name"),
        ({"anonymous_may_leave": "yes"}, "anonymous_may_leave"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_an_invalid_table_is_refused_with_its_place(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        full(**changes)


@pytest.mark.parametrize(
    ("changes", "models", "message"),
    [
        ({}, ["coder"], "names nano"),
        ({"upstreams": [upstream(), upstream()]}, ["nano"], "strong is taken"),
        ({}, ["nano", "strong"], "strong is taken"),
        ({"rules": [{"name": "x", "to": ["nano", "nano"]}]}, ["nano"], "twice"),
        ({"upstreams": [upstream(url="ftp://host/v1")]}, ["nano"], "must be like"),
        ({"upstreams": [upstream(url="https://user:key@host/v1")]}, ["nano"], "must be like"),
        ({"upstreams": [upstream(url="https://host/v1?key=1")]}, ["nano"], "must be like"),
        ({"upstreams": [upstream(url="/v1")]}, ["nano"], "must be like"),
    ],
)
def test_targets_and_addresses_are_checked(changes: dict[str, Any], models: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        full(**changes).check(models)


def test_a_key_comes_from_the_environment_and_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = full().upstreams[0]
    monkeypatch.setenv("STRONG_KEY", " secret ")
    assert read_key(settings) == "secret"
    monkeypatch.delenv("STRONG_KEY")
    with pytest.raises(InvalidRequest, match="STRONG_KEY"):
        read_key(settings)
    assert read_key(full(upstreams=[upstream(key_env="")]).upstreams[0]) == ""
