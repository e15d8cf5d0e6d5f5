"""Canary keys, bodies and names on every error path: none appears in logs or messages."""

from __future__ import annotations

import io
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import KeyDraft, Order, SavedReply
from quicksilver.accounts.service import Accounts
from quicksilver.core import Usage
from quicksilver.errors import QuicksilverError
from tests.accounts.conftest import FakeClock, make_customer
from tests.accounts.test_writer import locked

CANARY = "qs-CANARYcanaryCANARYcanaryCANARYcanaryCANARYc"
PROMPT = b"CANARY prompt: the launch code is 0000"
# Written once: a traceback shows the source lines it passes through.
NAME = "CANARY-name"
INJECTIONS = (
    "' OR '1'='1' --",
    "qs-'; DROP TABLE accounts; --",
    'qs-" UNION SELECT digest FROM secrets --',
    "%s%s%s%n",
    "{0.__class__}",
    "${jndi:ldap://x}",
    "\r\nSet-Cookie: a=b",
    "\x1b[31mCANARY",
    "\x00CANARY",
    "\ud800CANARY",
    "Ω" * 10_000,
)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything any logger says, tracebacks included, the database library's own chatter too."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    names = (None, "quicksilver", "sqlalchemy.engine", "sqlalchemy.pool")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger().addHandler(handler)
    yield said
    logging.getLogger().removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


async def message_of(work: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(QuicksilverError) as caught:
        await work()
    logging.getLogger("test").error("request failed", exc_info=caught.value)
    return f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


async def test_secrets_and_prompts_appear_in_no_output(
    url: str, config: AccountsConfig, clock: FakeClock, log: io.StringIO, tmp_path: Path
) -> None:
    accounts = await Accounts.open(url, config, clock)
    customer = await accounts.admin(make_customer)
    identity = customer.identity
    once = accounts.idempotency(NAME, PROMPT)
    said = [await message_of(lambda bearer=bearer: accounts.authenticate(bearer)) for bearer in (CANARY, *INJECTIONS)]
    await accounts.reserve(identity, Order("r1", "nano", 1, 1, once))
    said.append(await message_of(lambda: accounts.recall(identity, once)))
    said.append(await message_of(lambda: accounts.reserve(identity, Order("r1", "nano", 1, 1))))
    said.append(await message_of(lambda: accounts.reserve(identity, Order("r2", "nano", 1, 10**9))))
    await accounts.settle("r1", Usage(1, 0, 1), SavedReply(200, PROMPT))
    other = accounts.idempotency(NAME, PROMPT + b"!")
    said.append(await message_of(lambda: accounts.recall(identity, other)))
    said.append(await message_of(lambda: accounts.admin(lambda admin: admin.organizations.get_account(identity, NAME))))
    with locked(await accounts.admin(lambda admin: admin)):
        said.append(await message_of(lambda: accounts.reserve(identity, Order(NAME, "nano", 1, 1, other))))
        said.append(await message_of(lambda: accounts.settle(NAME, Usage(1), SavedReply(200, PROMPT))))
    await accounts.close()
    written = "".join(said) + log.getvalue()
    assert "CANARY" not in written
    assert customer.secret not in written
    assert "DROP TABLE" not in written
    assert "BEGIN" in log.getvalue()


async def test_injections_change_nothing(url: str, config: AccountsConfig, clock: FakeClock) -> None:
    accounts = await Accounts.open(url, config, clock)
    await accounts.admin(make_customer)
    for bearer in INJECTIONS:
        await message_of(lambda bearer=bearer: accounts.authenticate(bearer))
    assert len(await accounts.admin(lambda admin: admin.organizations.list_accounts(OPERATOR, "org"))) == 1
    await accounts.close()


async def test_secrets_and_prompts_are_not_in_the_database(
    sqlite_url: str, config: AccountsConfig, tmp_path: Path
) -> None:
    accounts = await Accounts.open(sqlite_url, config)
    customer = await accounts.admin(lambda admin: make_customer(admin, draft=KeyDraft("k")))
    once = accounts.idempotency("key", PROMPT)
    await accounts.reserve(customer.identity, Order("r", "nano", 1, 1, once))
    await accounts.close()
    stored = (tmp_path / "books.db").read_bytes()
    assert b"acme" in stored
    assert customer.secret.encode() not in stored
    assert customer.secret[9:].encode() not in stored
    assert b"launch code" not in stored
