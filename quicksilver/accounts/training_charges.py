"""TrainingCharges: charges trained tokens to the key that created a job. Blocking.

A charge is one transaction that opens and settles a ledger row. The row's id names the job and the part of it, so a
part that is trained again after a crash is charged once.
"""

from __future__ import annotations

import time
from dataclasses import replace

from quicksilver.accounts.budgets import Demand, load_budgets, refusal_of
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.keys import make_id
from quicksilver.accounts.ledger import Ledger, load_prices
from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import Charge, Order
from quicksilver.accounts.service import open_admin
from quicksilver.core import Usage
from quicksilver.errors import Conflict, QuicksilverError


def price_name(base: str) -> str:
    """The model name under which the price of a trained token of `base` is set, as its input price."""
    return f"training:{base}"


class TrainingCharges:
    def __init__(self, url: str, config: AccountsConfig) -> None:
        admin = open_admin(url, config)
        self._store = admin.store
        self._ledger = Ledger(make_id("proc"), config.default_price, config.reply_kept_s, time.time)
        self._keys = KeyLookup(admin.store, admin.pepper, config.auth_cache_s, time.time)
        self.objects = ObjectStore(admin.store)

    def check(self, key_id: str, base: str, num_tokens: int) -> None:
        """Raises if the budgets of the key do not allow these tokens."""
        identity, model = self._keys.by_id(key_id), price_name(base)
        with self._store.read() as connection:
            price = load_prices(connection, {model}).get(model, self._ledger.default_price)
            budgets = load_budgets(connection, identity.account_ids, time.time(), is_locked=False)
        refusal = refusal_of(budgets.values(), Demand(price.cost(Usage(num_tokens)), 0, 0))
        if refusal is not None:
            raise refusal

    def charge(self, key_id: str, part: str, base: str, num_tokens: int) -> int:
        """Micro-credits that were charged now; 0 for a part that was charged before. Raises if a budget is spent."""
        identity = replace(self._keys.by_id(key_id), models=None)
        order = Order(part, price_name(base), num_tokens, 0, is_rated=False)
        entries = (Reserve(identity, order), Close(part, How.SETTLE, Usage(num_tokens)))
        with self._store.write() as connection:
            reserved, charge = self._ledger.apply(connection, entries)
        if isinstance(reserved, Conflict):
            return 0
        for outcome in (reserved, charge):
            if isinstance(outcome, QuicksilverError):
                raise outcome
        assert isinstance(charge, Charge)
        return charge.cost

    def close(self) -> None:
        self._store.close()
