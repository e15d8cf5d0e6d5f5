"""A served app with hybrid routing: two scripted models of its own and a scripted upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.schema import ledger
from quicksilver.core import Delta, FinishReason, Request, TokenLogprob, Usage
from quicksilver.server.config import ModelCard
from quicksilver.server.hybrid.policy import parse_policy
from quicksilver.server.hybrid.rules import AUTO_NAMES
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.services import ServedModel, name_table
from tests.server.conftest import Served, says
from tests.support.bank import Bank
from tests.support.fake_engine import FakeEngine, Script, Step
from tests.support.fake_upstream import FakeUpstream
from tests.support.small_tokenizer import small_tokenizer

SURE, UNSURE = -0.1, -2.0
UPSTREAM_PRICE = {"input": 3_000_000, "cached_input": 1_000_000, "output": 15_000_000}
CASCADE = {"name": "cascade", "to": ["nano", "strong"], "gate": {"mean_logprob": -1.0}}


def answers(text: str, logprob: float = SURE, accepted: int = 8, finish: FinishReason = FinishReason.STOP) -> Script:
    """A script whose tokens all have the same log-probability, with `accepted` of 10 drafted tokens."""

    def script(request: Request) -> list[Step]:
        ids = tuple(small_tokenizer().encode(text))
        logprobs = () if request.params.logprobs is None else tuple(TokenLogprob(i, logprob) for i in ids)
        usage = Usage(len(request.prompt_ids), 0, len(ids), 1, drafted=10, accepted=accepted, rounds=1)
        return [Delta(request.id, ids, logprobs, finish=finish, usage=usage)]

    return script


class HybridServed:
    def __init__(self, served: Served, upstream: FakeUpstream) -> None:
        self.served = served
        self.upstream = upstream
        self.coder = FakeEngine(says("from the coder"))
        self.table: dict[str, Any] = {
            "anonymous_may_leave": True,
            "rules": [CASCADE],
            "upstreams": [
                {"name": "strong", "url": upstream.url, "model": "big", "price": UPSTREAM_PRICE, "idle_s": 0.3}
            ],
        }
        self.hybrid: Hybrid | None = None
        # The model of which the coder is an adapter.
        self.coder_base: str | None = None

    async def apply(self, **changes: Any) -> None:
        """Installs the policy with `changes` of its table."""
        self.table |= changes
        if self.hybrid is not None:
            await self.hybrid.close()
        policy = parse_policy(self.table)
        policy.check(["nano", "coder"])
        self.hybrid = Hybrid.open(policy)
        services = self.served.services
        card = ModelCard(id="coder")
        coder = ServedModel(card, self.coder, services.tokenizer, services.template, base=self.coder_base)
        names = name_table(("nano", "coder"), services.config, served_names=dict.fromkeys(AUTO_NAMES, "nano"))
        services = replace(services, others={"coder": coder}, names=names, hybrid=self.hybrid)
        self.served.services = self.served.app.state.services = services

    async def change_upstream(self, **fields: Any) -> None:
        await self.apply(upstreams=[{**self.table["upstreams"][0], **fields}])


@pytest.fixture
async def hybrid(served: Served) -> AsyncIterator[HybridServed]:
    async with FakeUpstream() as upstream:
        made = HybridServed(served, upstream)
        await made.apply()
        yield made
        assert made.coder.num_open == 0, "a slot was not given back"
        assert made.hybrid is not None
        await made.hybrid.close()


def legs_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    return [(leg["target"], leg["outcome"]) for leg in reply["usage"]["quicksilver"]["legs"]]


async def consent(bank: Bank, may_leave: bool = True) -> None:
    """For the project of the key that was made last."""

    def change(admin: Any) -> None:
        for project in admin.organizations.list_accounts(OPERATOR, "project", bank.org_id):
            admin.organizations.set_may_leave(OPERATOR, project.id, may_leave)

    await bank.accounts.admin(change)


async def rows_of(bank: Bank) -> list[Any]:
    """All rows of the ledger, in order."""

    def read(admin: Any) -> list[Any]:
        with admin.store.read() as connection:
            return list(connection.execute(select(ledger).order_by(ledger.c.seq)).all())

    return await bank.accounts.admin(read)
