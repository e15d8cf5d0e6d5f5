"""Tables for queries. `migrations` creates them; a test compares the two.

An *account* is an organisation, a project or a key: anything with a balance or limits. Its `path` joins the ids from
the organisation down to itself. A request is charged to every account of its key's path.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnClause, LargeBinary, TableClause, Text, column, table


def _texts(names: str) -> list[ColumnClause[Any]]:
    return [column(name, Text()) for name in names.split()]


def _ints(names: str) -> list[ColumnClause[Any]]:
    return [column(name, BigInteger()) for name in names.split()]


accounts: TableClause = table(
    "accounts",
    *_texts("id kind path name period"),
    *_ints("created_at disabled_at allowance spent reserved in_flight period_at spent_before may_leave"),
    *_ints("max_requests max_input max_output max_in_flight"),
)
api_keys: TableClause = table("api_keys", *_texts("id user_id scopes models"), *_ints("expires_at"))
secrets: TableClause = table("secrets", *_texts("digest key_id display"), *_ints("created_at expires_at"))
users: TableClause = table("users", *_texts("id org_id email"), *_ints("created_at disabled_at"))
grants: TableClause = table("grants", *_texts("org_id reference"), *_ints("seq amount granted_at"))
prices: TableClause = table("prices", *_texts("model"), *_ints("input cached output"))
ledger: TableClause = table(
    "ledger",
    *_texts("request_id path key_id model owner state closed_by"),
    *_ints("seq created_at closed_at max_input max_output input_price cached_price output_price reserved"),
    *_ints("is_rated has_claim wire_tokens wire_cached input_tokens cached_tokens output_tokens cost"),
)
usage: TableClause = table(
    "usage",
    *_texts("key_id model"),
    *_ints("hour requests input_tokens cached_tokens output_tokens cost"),
)
rate_buckets: TableClause = table(
    "rate_buckets", *_texts("account_id"), *_ints("second requests input_tokens output_tokens")
)
replies: TableClause = table(
    "replies",
    *_texts("key_id idempotency_key body_digest request_id"),
    *_ints("created_at status"),
    column("body", LargeBinary()),
)
owners: TableClause = table("owners", *_texts("id"), *_ints("heartbeat"))
objects: TableClause = table(
    "objects",
    *_texts("owner kind id parent leased_by"),
    *_ints("seq created_at size is_open leased_until"),
    column("body", LargeBinary()),
)
settings: TableClause = table("settings", *_texts("name value"))
TABLES = (
    accounts, api_keys, secrets, users, grants, prices, ledger, usage, rate_buckets, replies, owners, settings,
    objects,
)  # fmt: skip
