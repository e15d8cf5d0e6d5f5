"""Account replies: OpenAI's admin objects where they exist, with additional fields. `views` fills them from records.

Amounts are credits as exact decimal text; null means unbounded. Keys are sent in the order of the fields.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

KeyStatus = Literal["active", "revoked", "expired"]
Period = Literal["day", "month"] | None


class LimitsReply(TypedDict):
    max_requests_per_1_minute: int | None
    max_input_tokens_per_1_minute: int | None
    max_output_tokens_per_1_minute: int | None
    max_requests_in_flight: int | None


class OwnerUserReply(TypedDict):
    id: str
    email: str
    name: str
    role: str
    created_at: int


class ServiceAccountReply(TypedDict):
    id: str
    name: str
    role: str
    created_at: int


class OwnerReply(TypedDict):
    type: Literal["user", "service_account"]
    user: NotRequired[OwnerUserReply]
    service_account: NotRequired[ServiceAccountReply]


class MoneyReply(TypedDict):
    budget: str | None
    period: Period
    spent: str
    balance: str | None


class KeyReply(TypedDict):
    object: Literal["organization.project.api_key"]
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    status: KeyStatus
    scopes: list[str]
    models: list[str] | None
    project_id: str
    organization_id: str
    owner: OwnerReply
    owner_project_access: Literal["active", "inactive"]
    limits: LimitsReply
    budget: str | None
    period: Period
    spent: str
    balance: str | None


class NewKeyReply(KeyReply):
    value: str


class SpendingReply(TypedDict):
    """Amounts of one account on the path of a key."""

    id: str
    kind: Literal["organization", "project", "key"]
    name: str
    granted: str | None
    spent: str
    reserved: str
    balance: str | None
    period: Period
    in_flight: int
    limits: LimitsReply


class NamedReply(TypedDict):
    id: str
    name: str


class GaugeReply(TypedDict):
    limit: int
    remaining: int
    reset_s: float


class RateLimitsReply(TypedDict):
    requests: GaugeReply | None
    input_tokens: GaugeReply | None
    output_tokens: GaugeReply | None


class PriceReply(TypedDict):
    model: str
    input: str
    cached_input: str
    output: str


class AccountReply(TypedDict):
    object: Literal["account"]
    key: KeyReply
    project: NamedReply
    organization: NamedReply
    scopes: list[str]
    models: list[str] | None
    balance: str | None
    # From the organisation to the key, each with its spending.
    accounts: list[SpendingReply]
    rate_limits: RateLimitsReply
    prices: PriceReply
    # Deprecated: the same as `accounts`.
    purses: Annotated[list[SpendingReply], Field(deprecated="Use `accounts`.")]


class OrganizationReply(TypedDict):
    object: Literal["organization"]
    id: str
    name: str
    created_at: int
    status: Literal["active", "disabled"]
    granted: str | None
    spent: str
    reserved: str
    balance: str | None
    limits: LimitsReply


class NewOrganizationReply(OrganizationReply):
    default_project_id: str


class ProjectReply(TypedDict):
    object: Literal["organization.project"]
    id: str
    name: str
    organization_id: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]
    may_leave: bool
    limits: LimitsReply
    budget: str | None
    period: Period
    spent: str
    balance: str | None


class UserReply(TypedDict):
    object: Literal["organization.user"]
    id: str
    email: str
    name: str
    role: Literal["reader"]
    added_at: int
    organization_id: str
    status: Literal["active", "removed"]


class AdminOwnerReply(TypedDict):
    type: Literal["user"]
    object: Literal["organization.user"]
    id: str | None
    name: str | None
    role: Literal["owner"]
    created_at: int


class AdminKeyReply(TypedDict):
    object: Literal["organization.admin_api_key"]
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    status: KeyStatus
    owner: AdminOwnerReply


class NewAdminKeyReply(AdminKeyReply):
    value: str


class PricesReply(TypedDict):
    object: Literal["list"]
    data: list[PriceReply]
    default: PriceReply


class BudgetReply(TypedDict):
    object: Literal["organization.budget"]
    id: str
    budget: str | None
    period: Period
    spent: str
    balance: str | None


class ListReply(TypedDict):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class KeyList(ListReply):
    data: list[KeyReply]


class AdminKeyList(ListReply):
    data: list[AdminKeyReply]


class OrganizationList(ListReply):
    data: list[OrganizationReply]


class ProjectList(ListReply):
    data: list[ProjectReply]


class UserList(ListReply):
    data: list[UserReply]
