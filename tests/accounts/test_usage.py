"""Usage by hour and day, grouped and bounded, equal to the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import OPERATOR, Identity, Scope
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import KeyDraft, Order, UsageLine, UsageQuery
from quicksilver.accounts.service import AdminService
from quicksilver.accounts.usage import read_usage
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest, PermissionDenied
from tests.accounts.conftest import START, Customer, FakeClock, apply, make_customer

DAY = int(START) // 86_400 * 86_400
TODAY = UsageQuery(DAY, DAY + 86_400)


def spend(admin: AdminService, books: Ledger, identity: Identity, request_id: str, model: str = "nano") -> None:
    apply(
        admin, books,
        Reserve(identity, Order(request_id, model, 10, 10)), Close(request_id, How.SETTLE, Usage(10, 4, 2)),
    )  # fmt: skip


def test_usage_is_summed_into_buckets_with_empty_ones_between(
    admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    spend(admin, books, customer.identity, "r1")
    spend(admin, books, customer.identity, "r2", "coder")
    clock.now += 2 * 3600
    spend(admin, books, customer.identity, "r3")
    apply(admin, books, Reserve(customer.identity, Order("r4", "nano", 1, 1)), Close("r4", How.RELEASE))
    hour = int(START) // 3600 * 3600
    buckets = read_usage(admin.store, OPERATOR, UsageQuery(hour, hour + 3 * 3600, "1h"))
    assert [(bucket.start - hour, bucket.end - bucket.start) for bucket in buckets] == [
        (0, 3600), (3600, 3600), (7200, 3600),
    ]  # fmt: skip
    each = UsageLine(requests=1, input_tokens=10, cached_tokens=4, output_tokens=2, cost=264)
    twice = UsageLine(requests=2, input_tokens=20, cached_tokens=8, output_tokens=4, cost=528)
    assert [bucket.lines for bucket in buckets] == [(twice,), (), (each,)]


def test_lines_name_the_fields_of_their_group(admin: AdminService, books: Ledger, customer: Customer) -> None:
    spend(admin, books, customer.identity, "r1")
    spend(admin, books, customer.identity, "r2", "coder")
    query = replace(TODAY, group_by=("key", "model"))
    (bucket,) = read_usage(admin.store, OPERATOR, query)
    assert {(line.key_id, line.model, line.project_id) for line in bucket.lines} == {
        (customer.key_id, "nano", None), (customer.key_id, "coder", None),
    }  # fmt: skip
    (only,) = read_usage(admin.store, OPERATOR, replace(query, models=("coder",)))
    assert [line.model for line in only.lines] == ["coder"]
    (by_project,) = read_usage(admin.store, OPERATOR, replace(TODAY, group_by=("project", "user")))
    assert [(line.project_id, line.user_id, line.requests) for line in by_project.lines] == [
        (customer.project_id, None, 2)
    ]


def test_key_sees_its_own_project_only(admin: AdminService, books: Ledger, customer: Customer) -> None:
    stranger = make_customer(admin)
    sibling = admin.keys.create_key(OPERATOR, KeyDraft("sibling", customer.project_id))
    spend(admin, books, customer.identity, "r1")
    spend(admin, books, stranger.identity, "r2")
    spend(admin, books, replace(customer.identity, key_id=sibling.id), "r3")
    (mine,) = read_usage(admin.store, customer.identity, replace(TODAY, group_by=("key",)))
    assert {line.key_id for line in mine.lines} == {customer.key_id, sibling.id}
    (all_of_it,) = read_usage(admin.store, OPERATOR, TODAY)
    assert all_of_it.lines[0].requests == 3


def test_reading_usage_needs_the_scope(admin: AdminService, customer: Customer) -> None:
    with pytest.raises(PermissionDenied):
        read_usage(admin.store, replace(customer.identity, scopes=frozenset({Scope.INFERENCE})), TODAY)


@pytest.mark.parametrize(
    "odd",
    [{"width": "1m"}, {"group_by": ("batch",)}, {"start": DAY + 86_400}, {"end": DAY + 86_400 * 745}, {"start": -1}],
)
def test_invalid_queries_are_refused(odd: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        replace(TODAY, **odd)
