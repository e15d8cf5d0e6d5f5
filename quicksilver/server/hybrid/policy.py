"""HybridPolicy: the `[hybrid]` table of the operator's file, with its upstreams and rules.

The table is the only source of addresses, keys and prices. A request chooses among its rules; it cannot add a target.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from quicksilver.accounts.records import Price
from quicksilver.errors import InvalidRequest

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Share = Annotated[float, Meta(ge=0, le=1)]
Logprob = Annotated[float, Meta(le=0)]
Count = Annotated[int, Meta(ge=0)]


class CallKind(StrEnum):
    """What a request asks for. A request may be of several kinds; `CHAT` is one of no other kind."""

    CHAT = "chat"
    TOOLS = "tools"
    SCHEMA = "schema"
    CHOICE = "choice"
    REASONING = "reasoning"


class Profile(StrEnum):
    """`auto` is `auto:balanced`."""

    # The first target; the others only if it fails.
    CHEAP = "cheap"
    # The targets in order; the gate decides after each answer.
    BALANCED = "balanced"
    # The last target; the others, from the end, only if it fails.
    BEST = "best"


class TokenPrices(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Micro-credits per token of an upstream."""

    input: Count
    output: Count
    # The price of `input` if it is left out.
    cached_input: Count | None = None

    @property
    def price(self) -> Price:
        return Price(self.input, self.input if self.cached_input is None else self.cached_input, self.output)


class UpstreamSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server with an OpenAI-compatible chat endpoint."""

    name: Name
    # The address up to and including `/v1`.
    url: str
    model: str
    price: TokenPrices
    # The environment variable with the API key; empty: no key is sent.
    key_env: str = ""
    connect_s: Seconds = 5.0
    # Longest wait for the first and for each further piece of an answer.
    idle_s: Seconds = 30.0
    # Longest time for a whole answer.
    total_s: Seconds = 300.0
    # Further attempts after a refused connection or a 502, 503 or 504, before the first piece.
    retries: Annotated[int, Meta(ge=0, le=5)] = 1
    # The breaker opens after this many failures within `failure_window_s` and stays open for `open_s`.
    max_failures: Annotated[int, Meta(ge=1)] = 5
    failure_window_s: Seconds = 30.0
    open_s: Seconds = 30.0


class GateSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions under which an answer is delivered and the next target is not asked. Unset fields do not apply."""

    # Mean and least log-probability of the answer's tokens, without those that a grammar forced.
    mean_logprob: Logprob | None = None
    min_logprob: Logprob | None = None
    # Share of the drafted tokens that verification accepted.
    acceptance: Share | None = None
    # An answer that the token limit cut off is not delivered.
    complete: bool = True
    # A yes-or-no question about the answer, put to the model that wrote it.
    question: str = ""
    # Least probability of `yes`.
    question_probability: Share = 0.5


class RuleCondition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request matches if it matches every field that is set."""

    # The request is of at least one of these kinds.
    kinds: frozenset[CallKind] = frozenset()
    profiles: frozenset[Profile] = frozenset()
    # `reasoning_effort` of the request.
    efforts: frozenset[str] = frozenset()
    # Ids of the projects whose requests match.
    projects: frozenset[str] = frozenset()
    # Characters of all messages and tools.
    min_chars: Count = 0
    max_chars: Count | None = None
    min_messages: Count = 0


class RuleSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first rule whose condition matches decides."""

    name: Name
    # Models of this server and upstreams, the cheapest first.
    to: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    when: RuleCondition = msgspec.field(default_factory=RuleCondition)
    gate: GateSettings | None = None
    # Every target after the first receives the answer before it as `prediction`.
    prediction: bool = False


class HybridPolicy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rules: Annotated[tuple[RuleSettings, ...], Meta(min_length=1)]
    upstreams: tuple[UpstreamSettings, ...] = ()
    # On a server without accounts: whether prompts may leave this server.
    anonymous_may_leave: bool = False

    def upstream(self, name: str) -> UpstreamSettings | None:
        return next((each for each in self.upstreams if each.name == name), None)

    def check(self, models: Collection[str]) -> None:
        """Raises InvalidRequest for a target that is neither one of `models` nor an upstream."""
        names = [each.name for each in self.upstreams]
        for name in names:
            if names.count(name) > 1 or name in models:
                raise InvalidRequest(f"hybrid.upstreams: the name {name} is taken", param="hybrid")
        for upstream in self.upstreams:
            _check_url(upstream)
        for rule in self.rules:
            for target in rule.to:
                if target not in names and target not in models:
                    known = ", ".join((*models, *names))
                    raise InvalidRequest(
                        f"hybrid.rules: {rule.name} names {target}, which is neither served here nor an upstream; "
                        f"known are {known}",
                        param="hybrid",
                    )
            if len(set(rule.to)) < len(rule.to):
                raise InvalidRequest(f"hybrid.rules: {rule.name} names a target twice", param="hybrid")


def parse_policy(table: Mapping[str, Any]) -> HybridPolicy:
    """The policy of a parsed `[hybrid]` table. Raises InvalidRequest with the place of the first error."""
    try:
        return msgspec.convert(table, HybridPolicy)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"[hybrid]: {error}", param="hybrid") from None


def read_key(upstream: UpstreamSettings) -> str:
    """The API key of the upstream; raises InvalidRequest if its variable is not set."""
    if not upstream.key_env:
        return ""
    key = os.environ.get(upstream.key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"hybrid.upstreams: {upstream.name} takes its key from the variable {upstream.key_env}; set it to a key",
            param="hybrid",
        )
    return key


def _check_url(upstream: UpstreamSettings) -> None:
    parts = urlsplit(upstream.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidRequest(
            f"hybrid.upstreams: the url of {upstream.name} must be like https://host/v1, without user, query or "
            "fragment",
            param="hybrid",
        )
