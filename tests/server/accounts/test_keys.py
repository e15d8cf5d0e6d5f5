"""Bodies of keys as drafts."""

from __future__ import annotations

from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import Limits
from quicksilver.server.accounts.keys import DEFAULT_SCOPES, draft_of, expiry, limits_of, revoke_key, rotate_key
from quicksilver.server.accounts.wire import KeyBody, LimitsBody, ProjectKeyBody
from tests.support.bank import Bank


def test_a_key_has_the_default_scopes_unless_the_body_names_others() -> None:
    assert draft_of(KeyBody(name="a"), "p", 100.0).scopes == frozenset(DEFAULT_SCOPES)
    assert draft_of(KeyBody(name="a", scopes=["usage"]), "p", 100.0).scopes == {Scope.USAGE}


def test_every_field_of_the_body_is_in_the_draft() -> None:
    limits = LimitsBody(max_requests_per_1_minute=3, max_requests_in_flight=2)
    body = ProjectKeyBody(name="a", models=["nano"], expires_in_seconds=60, limits=limits, user_id="user_1")
    draft = draft_of(body, "p", 100.9)
    assert (draft.name, draft.project_id, draft.user_id) == ("a", "p", "user_1")
    assert draft.models == {"nano"}
    assert draft.expires_at == 160
    assert draft.limits == limits_of(limits) == Limits(requests=3, concurrency=2)
    assert draft_of(KeyBody(name="a"), "p", 0.0).limits is None


def test_a_key_without_an_expiry_does_not_expire() -> None:
    assert expiry(None, 100.0) is None


async def test_a_rotated_key_gets_a_new_secret_and_a_revoked_one_is_disabled(bank: Bank) -> None:
    key = await bank.key(scopes=frozenset({Scope.INFERENCE, Scope.KEYS}))
    secret = key["authorization"].removeprefix("Bearer ")
    identity = await bank.accounts.authenticate(secret)
    new = await rotate_key(bank.accounts, identity, identity.key_id, overlap_s=3600)
    assert new["value"] != secret
    fresh = await bank.accounts.authenticate(new["value"])
    reply = await revoke_key(bank.accounts, fresh, new["id"])
    assert reply == {"object": "organization.project.api_key.deleted", "id": new["id"], "deleted": True}
    key_record = await bank.accounts.admin(lambda admin: admin.keys.get_key(OPERATOR, new["id"]))
    assert key_record.account.is_disabled
