"""Account bodies: keys, organisations, projects, users, budgets, limits, prices.

Unlike chat bodies these refuse unknown fields: a misspelt `expires_in_seconds` must not make a key that never ends.
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
    """What is left out or null is not limited."""

    max_requests_per_1_minute: PerMinute | None = None
    max_input_tokens_per_1_minute: PerMinute | None = None
    max_output_tokens_per_1_minute: PerMinute | None = None
    max_requests_in_flight: PerMinute | None = None


class KeyBody(AccountBody):
    name: Title
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=MAX_LIST)] | None = None
    """Null: inference and usage."""
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_LIST)] | None = None
    """Models the key may name; null: all its maker may."""
    expires_in_seconds: Seconds | None = None
    budget: Credits | None = None
    limits: LimitsBody | None = None


class ProjectKeyBody(KeyBody):
    user_id: ObjectId | None = None
    """The person whose key it is; it ends with them."""


class RightsBody(AccountBody):
    """A key's new name or rights; what is left out stays."""

    name: Title | None = None
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=MAX_LIST)] | None = None
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_LIST)] | None = None


class RotateBody(AccountBody):
    overlap_seconds: Annotated[int, Field(ge=0, le=30 * 86_400), WHOLE] = 0
    """How long old secrets still work."""


class AdminKeyBody(AccountBody):
    name: Title
    expires_in_seconds: Seconds | None = None


class OrganizationBody(AccountBody):
    name: Title
    credits: Annotated[int, Field(ge=0, le=MAX_CREDITS), WHOLE] | None = None
    """To start with; null: what sign-up gives."""


class OrganizationChangeBody(AccountBody):
    name: Title | None = None
    status: Literal["active", "disabled"] | None = None


class CreditsBody(AccountBody):
    credits: Annotated[int, Field(ge=1, le=MAX_CREDITS), WHOLE]
    reference: Title
    """The same reference is booked once; the second time is a 409."""


class ProjectBody(AccountBody):
    name: Title
    organization_id: ObjectId | None = None
    """Null: the organisation of the key that asks."""


class ProjectChangeBody(AccountBody):
    name: Title


class UserBody(AccountBody):
    email: Title
    organization_id: ObjectId | None = None


class BudgetBody(AccountBody):
    budget: Credits | None
    """Null lifts the bound."""
    period: Literal["day", "month"] | None = None
    """Null: in all; else per UTC day or month."""


class PriceBody(AccountBody):
    """Micro-credits per token; cached input never costs more than fresh input."""

    input: MicroPerToken
    cached_input: MicroPerToken
    output: MicroPerToken


BODIES = (KeyBody, RotateBody)
"""Read on the main listener."""
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
