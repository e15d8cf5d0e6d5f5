"""Lookup of keys: revocation, expiry, inherited rights, cache."""

from __future__ import annotations

import pytest

from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.keys import make_secret
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import AdminService
from quicksilver.errors import AuthenticationFailed
from tests.accounts.conftest import RIGHTS, START, Customer, FakeClock, make_customer


@pytest.fixture
def ring(admin: AdminService, clock: FakeClock) -> KeyLookup:
    return KeyLookup(admin.store, admin.pepper, 0.0, clock)


def look_up(ring: KeyLookup, bearer: str | None) -> object:
    return ring.look_up(ring.digest(bearer))


def test_secret_gives_the_identity_of_its_key(ring: KeyLookup, customer: Customer) -> None:
    assert look_up(ring, customer.secret) == customer.identity


def test_unknown_and_malformed_keys_raise_the_same_error(ring: KeyLookup) -> None:
    for bearer in (make_secret(), "qs-x'; DROP TABLE accounts; --", None, "Bearer x", "é"):
        with pytest.raises(AuthenticationFailed):
            look_up(ring, bearer)


@pytest.mark.parametrize("what", ["key_id", "project_id", "org_id"])
def test_disabling_anything_above_stops_the_key(
    admin: AdminService, ring: KeyLookup, customer: Customer, what: str
) -> None:
    identity = ring.look_up(ring.digest(customer.secret))
    assert ring.is_live(identity)
    admin.organizations.disable(OPERATOR, getattr(customer, what))
    with pytest.raises(AuthenticationFailed):
        look_up(ring, customer.secret)
    assert not ring.is_live(identity)
    admin.organizations.enable(OPERATOR, getattr(customer, what))
    assert look_up(ring, customer.secret) == customer.identity


def test_key_expires(admin: AdminService, ring: KeyLookup, clock: FakeClock) -> None:
    customer = make_customer(admin, draft=KeyDraft("k", expires_at=int(START) + 10))
    assert look_up(ring, customer.secret) == customer.identity
    clock.now += 10
    with pytest.raises(AuthenticationFailed):
        look_up(ring, customer.secret)


def test_old_secret_is_valid_for_the_overlap(
    admin: AdminService, ring: KeyLookup, customer: Customer, clock: FakeClock
) -> None:
    new = admin.keys.rotate_key(OPERATOR, customer.key_id, overlap_s=30)
    assert look_up(ring, new.secret) == customer.identity
    old = ring.look_up(ring.digest(customer.secret))
    assert old.expires_at == int(START) + 30
    clock.now += 30
    with pytest.raises(AuthenticationFailed):
        look_up(ring, customer.secret)
    newest = admin.keys.rotate_key(OPERATOR, customer.key_id)
    with pytest.raises(AuthenticationFailed):
        look_up(ring, new.secret)
    assert look_up(ring, newest.secret) == customer.identity


def test_rights_are_the_intersection_over_the_path(admin: AdminService, ring: KeyLookup, customer: Customer) -> None:
    child = admin.keys.create_key(customer.identity, KeyDraft("child", scopes=RIGHTS, models=frozenset({"a", "b"})))
    admin.keys.narrow_key(OPERATOR, customer.key_id, frozenset({Scope.INFERENCE}), frozenset({"b", "c"}))
    identity = ring.look_up(ring.digest(child.secret))
    assert identity.scopes == {Scope.INFERENCE}
    assert identity.models == {"b"}
    assert identity.path == f"{customer.identity.path}/{child.id}"


def test_revoking_a_key_revokes_keys_made_with_it(admin: AdminService, ring: KeyLookup, customer: Customer) -> None:
    child = admin.keys.create_key(customer.identity, KeyDraft("child"))
    admin.organizations.disable(OPERATOR, customer.key_id)
    with pytest.raises(AuthenticationFailed):
        look_up(ring, child.secret)


def test_lookup_is_cached_for_the_cache_time(admin: AdminService, customer: Customer, clock: FakeClock) -> None:
    patient = KeyLookup(admin.store, admin.pepper, 60.0, clock)
    digest = patient.digest(customer.secret)
    assert patient.cached(digest) is None
    identity = patient.look_up(digest)
    assert patient.cached(digest) == identity
    forgetful = KeyLookup(admin.store, admin.pepper, 0.0, clock)
    forgetful.look_up(digest)
    assert forgetful.cached(digest) is None


def test_cached_key_still_expires(admin: AdminService, clock: FakeClock) -> None:
    customer = make_customer(admin, draft=KeyDraft("k", expires_at=int(START) + 10))
    ring = KeyLookup(admin.store, admin.pepper, 60.0, clock)
    digest = ring.digest(customer.secret)
    ring.look_up(digest)
    clock.now += 10
    assert ring.cached(digest) is None


def test_lookup_cache_is_bounded(admin: AdminService, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.accounts.key_lookup._MAX_CACHED", 2)
    ring = KeyLookup(admin.store, admin.pepper, 60.0, clock)
    digests = [ring.digest(make_customer(admin).secret) for _ in range(3)]
    for digest in digests:
        ring.look_up(digest)
    assert [ring.cached(digest) is None for digest in digests] == [True, False, False]
