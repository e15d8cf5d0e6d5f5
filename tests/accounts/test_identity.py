"""Scopes and identities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.accounts.identity import ALL_SCOPES, OPERATOR, Identity, Scope, narrow, parse_scopes, stored_scopes
from quicksilver.errors import InvalidRequest, PermissionDenied

scope_sets = st.frozensets(st.sampled_from(Scope))
model_lists = st.none() | st.frozensets(st.sampled_from(["nano", "coder", "base"]))


def test_admin_contains_every_scope() -> None:
    assert parse_scopes(["admin"]) == ALL_SCOPES
    assert OPERATOR.is_admin


def test_unknown_scope_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="scopes are"):
        parse_scopes(["inference", "root"])


@given(scope_sets, scope_sets)
def test_expanding_scopes_keeps_inclusion(small: frozenset[Scope], more: frozenset[Scope]) -> None:
    assert parse_scopes(small) <= parse_scopes(small | more)
    assert parse_scopes(parse_scopes(small)) == parse_scopes(small)


@given(model_lists, model_lists)
def test_narrowing_allows_what_both_allow(one: frozenset[str] | None, other: frozenset[str] | None) -> None:
    for model in ("nano", "coder", "base"):
        allowed = (one is None or model in one) and (other is None or model in other)
        both = narrow(one, other)
        assert (both is None or model in both) == allowed


def test_identity_requires_scope_and_model() -> None:
    identity = Identity("k", "o/p/k", frozenset({Scope.INFERENCE}), frozenset({"nano"}))
    identity.require(Scope.INFERENCE)
    identity.require_model("nano")
    with pytest.raises(PermissionDenied, match="'keys'"):
        identity.require(Scope.KEYS)
    with pytest.raises(PermissionDenied, match="model"):
        identity.require_model("coder")


def test_identity_sees_itself_and_below_only() -> None:
    identity = Identity("k", "o/p/k", frozenset({Scope.KEYS}))
    assert identity.sees("o/p/k")
    assert identity.sees("o/p/k/child")
    assert not identity.sees("o/p/k2")
    assert not identity.sees("o/p")
    assert OPERATOR.sees("o")


def test_tenant_is_the_project() -> None:
    assert Identity("k", "o/p/k", ALL_SCOPES).tenant == "p"


def test_unknown_scopes_in_the_database_are_ignored() -> None:
    assert stored_scopes("files inference training") == {Scope.INFERENCE}
    assert stored_scopes("admin files training") == ALL_SCOPES
    assert stored_scopes("") == frozenset()
