"""Keys of requests: where they are read, and what each dependency requires."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from quicksilver.accounts.identity import Scope
from quicksilver.errors import NotFound, PermissionDenied, QuicksilverError
from quicksilver.server.http.auth import (
    BATCH_CALLER,
    LONG_BODY_BYTES,
    MAX_KEY_CHARS,
    Caller,
    accounts_of,
    bearer_of,
    caller_of,
    identity_of,
    require_admin,
    require_inference,
    require_key,
    require_metrics,
)
from quicksilver.server.http.connections import TRUST
from tests.server.conftest import Served
from tests.support.bank import Bank


def request_to(served: Served | None = None, headers: dict[str, str] | None = None, **scope: Any) -> Request:
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    app = served.app if served else None
    return Request({"type": "http", "method": "POST", "path": "/", "headers": pairs, "app": app, "state": {}, **scope})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "abc", "x-api-key": "def"}, None),
        ({"x-api-key": "def"}, "def"),
        ({"x-api-key": ""}, None),
        ({}, None),
        ({"x-api-key": "k" * MAX_KEY_CHARS}, "k" * MAX_KEY_CHARS),
        ({"x-api-key": "k" * (MAX_KEY_CHARS + 1)}, None),
    ],
)
def test_the_key_is_in_one_of_two_headers(headers: dict[str, str], key: str | None) -> None:
    assert bearer_of(request_to(headers=headers)) == key


async def test_without_accounts_every_caller_is_one_tenant(served: Served) -> None:
    request = request_to(served)
    await require_inference(request)
    assert caller_of(request) == Caller(None)
    assert caller_of(request).tenant == ""
    for read in (accounts_of, identity_of):
        with pytest.raises(NotFound, match="--accounts"):
            read(request)


async def test_a_connection_is_trusted_after_authentication_only(bank: Bank) -> None:
    trusted: list[bool] = []
    scope = {TRUST: lambda: trusted.append(True)}
    with pytest.raises(QuicksilverError):
        await require_key(request_to(bank.served, {"x-api-key": "wrong"}, **scope))
    assert trusted == []
    await require_key(request_to(bank.served, await bank.key(), **scope))
    assert trusted == [True]


async def test_a_line_of_a_batch_has_the_caller_of_the_batch(bank: Bank) -> None:
    request = request_to(bank.served, **{BATCH_CALLER: Caller()})
    await require_key(request)
    assert caller_of(request) == Caller()


async def test_each_scope_opens_its_routes(bank: Bank) -> None:
    usage = await bank.key(scopes=frozenset({Scope.USAGE}))
    with pytest.raises(PermissionDenied):
        await require_inference(request_to(bank.served, usage))
    for require in (require_admin, require_metrics):
        with pytest.raises(PermissionDenied):
            await require(request_to(bank.served, usage))
    await require_metrics(request_to(bank.served, await bank.key(scopes=frozenset({Scope.METRICS}))))


async def test_an_admin_key_is_limited_to_its_tenant_on_the_main_listener(bank: Bank) -> None:
    key = await bank.key(scopes=frozenset({Scope.ADMIN, Scope.INFERENCE}))
    request = request_to(bank.served, key)
    await require_key(request)
    assert Scope.ADMIN not in identity_of(request).scopes
    await require_admin(admin := request_to(bank.served, key))
    assert Scope.ADMIN in identity_of(admin).scopes


async def test_a_long_body_needs_credit_before_it_is_read(bank: Bank) -> None:
    key = await bank.key(credits=0)
    await require_inference(request_to(bank.served, {**key, "content-length": str(LONG_BODY_BYTES)}))
    await require_inference(request_to(bank.served, key))  # without a body
    lengths = ({"content-length": length} for length in (str(LONG_BODY_BYTES + 1), "9" * 40))
    for headers in (*lengths, {"transfer-encoding": "chunked"}):
        with pytest.raises(QuicksilverError, match="balance is spent"):
            await require_inference(request_to(bank.served, {**key, **headers}))
    replay = {**key, "content-length": str(LONG_BODY_BYTES + 1), "idempotency-key": "a"}
    await require_inference(request_to(bank.served, replay))
