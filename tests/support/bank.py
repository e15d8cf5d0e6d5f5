"""An accounts database attached to a served app, and API keys for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import Accounts

if TYPE_CHECKING:
    from tests.server.conftest import Served

# Micro-credits per token, by default.
PRICE = 1_000_000


class Bank:
    """The accounts of a served app; `key` makes an organisation with one key, `spent` reads its charges."""

    def __init__(self, accounts: Accounts, served: Served) -> None:
        self.accounts = accounts
        self.served = served
        served.rebuild(served.services.config, accounts)

    async def key(self, **fields: Any) -> dict[str, str]:
        credits = fields.pop("credits", 1_000_000)

        def make(admin: Any) -> str:
            org = admin.organizations.create_org(OPERATOR, "org", credits)
            self.org_id = org.id
            project = admin.organizations.create_project(OPERATOR, org.id, "project")
            return str(admin.keys.create_key(OPERATOR, KeyDraft("key", project.id, **fields)).secret)

        return {"authorization": f"Bearer {await self.accounts.admin(make)}"}

    async def spent(self) -> int:
        account = await self.accounts.admin(lambda admin: admin.organizations.get_account(OPERATOR, self.org_id))
        assert account.reserved == 0, "a reservation is still open"
        return int(account.spent) // PRICE
