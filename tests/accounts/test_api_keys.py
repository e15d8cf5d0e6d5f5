"""API keys: creation, rotation, lists, and no gain of rights by keys made with keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from quicksilver.accounts.api_keys import MAX_OVERLAP_S, KeyDraft
from quicksilver.accounts.identity import ALL_SCOPES, OPERATOR, Identity, Scope
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.records import Limits
from quicksilver.accounts.schema import secrets
from quicksilver.accounts.service import AdminService
from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied
from tests.accounts.conftest import RIGHTS, START, Customer, FakeClock, make_customer


def identity_of(admin: AdminService, secret: str) -> Identity:
    ring = KeyLookup(admin.store, admin.pepper, 0.0, admin.organizations.clock)
    return ring.look_up(ring.digest(secret))


def test_bootstrap_creates_an_admin_key_once(admin: AdminService) -> None:
    first = admin.keys.bootstrap()
    assert first is not None
    assert identity_of(admin, first.secret).is_admin
    assert admin.keys.bootstrap() is None


def test_secret_is_neither_stored_nor_in_a_repr(admin: AdminService) -> None:
    key = admin.keys.bootstrap()
    assert key is not None
    with admin.store.read() as connection:
        stored = connection.execute(select(secrets)).one()
    assert key.secret not in str(tuple(stored))
    assert key.secret not in repr(key)
    assert key.secret not in f"{key}"
    assert stored.display == key.secret[:9] + "…"


def test_new_key_has_the_fields_of_its_draft(admin: AdminService, customer: Customer) -> None:
    limits = Limits(1, 2, 3, 4)
    draft = KeyDraft("ci", customer.project_id, RIGHTS, frozenset({"a", "b"}), int(START) + 9, 77, limits)
    made = admin.keys.create_key(OPERATOR, draft)
    (record,) = [key for key in admin.keys.list_keys(OPERATOR, customer.project_id) if key.account.id == made.id]
    assert (record.scopes, record.models, record.expires_at) == (RIGHTS, {"a", "b"}, int(START) + 9)
    assert (record.account.allowance, record.account.limits, record.account.name) == (77, limits, "ci")
    assert record.displays == (made.secret[:9] + "…",)


def test_list_shows_each_valid_secret(admin: AdminService, customer: Customer, clock: FakeClock) -> None:
    new = admin.keys.rotate_key(OPERATOR, customer.key_id, 10)
    (record,) = admin.keys.list_keys(customer.identity)
    assert set(record.displays) == {customer.secret[:9] + "…", new.secret[:9] + "…"}
    clock.now += 10
    (record,) = admin.keys.list_keys(customer.identity)
    assert record.displays == (new.secret[:9] + "…",)


@pytest.mark.parametrize("overlap_s", [-1, MAX_OVERLAP_S + 1])
def test_overlap_is_bounded(admin: AdminService, customer: Customer, overlap_s: int) -> None:
    with pytest.raises(InvalidRequest):
        admin.keys.rotate_key(OPERATOR, customer.key_id, overlap_s)


def test_child_cannot_have_more_scopes_models_or_time(admin: AdminService, customer: Customer) -> None:
    maker = replace(customer.identity, models=frozenset({"a"}), expires_at=int(START) + 100)
    good = KeyDraft("c", "", frozenset({Scope.INFERENCE}), frozenset({"a"}), int(START) + 100)
    assert admin.keys.create_key(maker, good).id
    for bad in (
        replace(good, scopes=frozenset({Scope.METRICS})),
        replace(good, scopes=frozenset({Scope.ADMIN})),
        replace(good, models=None),
        replace(good, models=frozenset({"a", "b"})),
        replace(good, expires_at=None),
        replace(good, expires_at=int(START) + 101),
    ):
        with pytest.raises(PermissionDenied):
            admin.keys.create_key(maker, bad)


def test_creating_keys_needs_the_scope(admin: AdminService, customer: Customer) -> None:
    meek = replace(customer.identity, scopes=frozenset({Scope.INFERENCE}))
    for work in (
        lambda: admin.keys.create_key(meek, KeyDraft("c")),
        lambda: admin.keys.rotate_key(meek, customer.key_id),
        lambda: admin.keys.narrow_key(meek, customer.key_id, frozenset(), None),
        lambda: admin.organizations.disable(meek, customer.key_id),
    ):
        with pytest.raises(PermissionDenied):
            work()


def test_key_cannot_widen_itself(admin: AdminService, customer: Customer) -> None:
    with pytest.raises(PermissionDenied, match="own rights"):
        admin.keys.narrow_key(customer.identity, customer.key_id, RIGHTS, None)


def test_nesting_is_bounded(admin: AdminService, customer: Customer) -> None:
    identity = customer.identity
    for depth in range(3):
        key = admin.keys.create_key(identity, KeyDraft(f"level {depth}", scopes=RIGHTS))
        identity = identity_of(admin, key.secret)
    with pytest.raises(PermissionDenied, match="nested"):
        admin.keys.create_key(identity, KeyDraft("too deep"))


@pytest.mark.parametrize("bad", [{"budget": -1}, {"expires_at": -5}, {"models": frozenset({"a b"})}])
def test_invalid_drafts_are_refused(admin: AdminService, customer: Customer, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        admin.keys.create_key(OPERATOR, KeyDraft("k", customer.project_id, **bad))  # type: ignore[arg-type]


scopes = st.frozensets(st.sampled_from(sorted(Scope)), max_size=4)
models = st.none() | st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=3)
moves = st.lists(st.tuples(st.sampled_from(["mint", "narrow"]), st.integers(0, 9), scopes, models), max_size=12)


def stands_below(low: Identity, high: Identity) -> bool:
    fits = high.models is None or (low.models is not None and low.models <= high.models)
    return low.scopes <= high.scopes and fits


@given(script=moves)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_sequence_of_creating_and_narrowing_keys_gains_rights(
    admin: AdminService, script: list[tuple[str, int, frozenset[Scope], frozenset[str] | None]]
) -> None:
    rights = ALL_SCOPES - {Scope.ADMIN}
    root = make_customer(admin, draft=KeyDraft("root", scopes=rights, models=frozenset({"a", "b"})))
    keys = [root.secret]
    parent_of: dict[str, str] = {}
    for what, pick, wanted, wanted_models in script:
        maker = identity_of(admin, keys[pick % len(keys)])
        try:
            if what == "mint":
                made = admin.keys.create_key(maker, KeyDraft("k", scopes=wanted, models=wanted_models))
                keys.append(made.secret)
                parent_of[made.secret] = keys[pick % (len(keys) - 1)]
            else:
                target = identity_of(admin, keys[(pick + 1) % len(keys)])
                admin.keys.narrow_key(maker, target.key_id, wanted, wanted_models)
        except (PermissionDenied, NotFound):
            continue
    highest = identity_of(admin, root.secret)
    for child, maker_secret in parent_of.items():
        assert stands_below(identity_of(admin, child), identity_of(admin, maker_secret))
        assert stands_below(identity_of(admin, child), highest)
        assert identity_of(admin, child).org_id == root.org_id
