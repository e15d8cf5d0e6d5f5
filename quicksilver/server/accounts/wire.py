"""Account bodies: keys, organisations, projects, users, budgets, limits, prices.

Unlike chat bodies these refuse unknown fields: a misspelt `expires_in_seconds` must not create a key without expiry.
Amounts are credits as decimal text, exact to a millionth.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from quicksilver.server.http.fields import WHOLE, Name, Wire

MAX_LIST = 64
MAX_SECONDS = 10 * 366 * 86_400
MAX_CREDITS = 10**12
MAX_PER_MINUTE = 2**31
MAX_MICRO_PER_TOKEN = 10**9

ScopeName = Literal["inference", "usage", "keys", "metrics", "admin"]
Title = Annotated[str, Field(min_length=1, max_length=128)]
Credits = Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$")]
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS), WHOLE]
PerMinute = Annotated[int, Field(ge=0, le=MAX_PER_MINUTE), WHOLE]
MicroPerToken = Annotated[int, Field(ge=0, le=MAX_MICRO_PER_TOKEN), WHOLE]
ObjectId = Annotated[str, Field(min_length=1, max_length=64)]


class AccountBody(Wire):
    model_config = ConfigDict(extra="forbid")


class LimitsBody(AccountBody):
    """A limit that is left out or null does not apply."""

    max_requests_per_1_minute: PerMinute | None = None
    max_input_tokens_per_1_minute: PerMinute | None = None
    max_output_tokens_per_1_minute: PerMinute | None = None
    max_requests_in_flight: PerMinute | None = None


class KeyBody(AccountBody):
    name: Title
    # Null: inference and usage.
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=MAX_LIST)] | None = None
    # Models that the key may use; null: all. A key that may not use all must list them.
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_LIST)] | None = None
    expires_in_seconds: Seconds | None = None
    budget: Credits | None = None
    limits: LimitsBody | None = None


class ProjectKeyBody(KeyBody):
    # The owner of the key; removing the user revokes it.
    user_id: ObjectId | None = None


class RightsBody(AccountBody):
    """A key's new name or rights; fields that are left out do not change."""

    name: Title | None = None
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=MAX_LIST)] | None = None
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_LIST)] | None = None


class RotateBody(AccountBody):
    # How long old secrets stay valid.
    overlap_seconds: Annotated[int, Field(ge=0, le=30 * 86_400), WHOLE] = 0


class AdminKeyBody(AccountBody):
    name: Title
    expires_in_seconds: Seconds | None = None


class OrganizationBody(AccountBody):
    name: Title
    # Initial credits; null: the credits of a sign-up.
    credits: Annotated[int, Field(ge=0, le=MAX_CREDITS), WHOLE] | None = None


class OrganizationChangeBody(AccountBody):
    name: Title | None = None
    status: Literal["active", "disabled"] | None = None


class CreditsBody(AccountBody):
    credits: Annotated[int, Field(ge=1, le=MAX_CREDITS), WHOLE]
    # A reference is booked once; using it again is a 409.
    reference: Title


class ProjectBody(AccountBody):
    name: Title
    # Null: the organisation of the caller's key.
    organization_id: ObjectId | None = None


class ProjectChangeBody(AccountBody):
    """Fields that are left out do not change."""

    name: Title | None = None
    # Whether prompts of the project may be sent to upstreams of hybrid routing.
    may_leave: bool | None = None


class UserBody(AccountBody):
    email: Title
    organization_id: ObjectId | None = None


class BudgetBody(AccountBody):
    # Null removes the bound.
    budget: Credits | None
    # Null: the budget never resets; otherwise it resets every UTC day or month.
    period: Literal["day", "month"] | None = None


class PriceBody(AccountBody):
    """Micro-credits per token; cached input never costs more than fresh input."""

    input: MicroPerToken
    cached_input: MicroPerToken
    output: MicroPerToken


# Read on the main listener.
BODIES = (KeyBody, RotateBody)
ADMIN_BODIES = (
    ProjectKeyBody,
    RightsBody,
    RotateBody,
    AdminKeyBody,
    OrganizationBody,
    OrganizationChangeBody,
    CreditsBody,
    ProjectBody,
    ProjectChangeBody,
    UserBody,
    LimitsBody,
    BudgetBody,
    PriceBody,
)
