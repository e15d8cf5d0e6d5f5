"""Requests that try to receive output without paying for it."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.source import GrammarSource
from quicksilver.core import ConstraintSpec, Delta, FinishReason
from tests.server.conftest import chat, says
from tests.support.bank import Bank
from tests.support.fake_engine import spoken

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SECRET = "a long text that would otherwise be free"
OUTPUT = f'{{"t": "{SECRET}", "a": [[], []]}}'
# Two empty arrays break `uniqueItems`, and nothing else satisfies the other keywords.
IMPOSSIBLE = {
    "type": "object",
    "required": ["t", "a"],
    "additionalProperties": False,
    "properties": {
        "t": {"type": "string"},
        "a": {
            "type": "array",
            "items": {"type": "array", "maxItems": 0},
            "minItems": 2,
            "maxItems": 2,
            "uniqueItems": True,
        },
    },
}


def impossible(**fields: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": IMPOSSIBLE}}
    return chat(response_format=wanted, **fields)


class UnprovenGrammars:
    """A compiler that cannot prove the contradiction, so only the final check finds it."""

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        return ConstraintSpec()


@pytest.fixture
def paying(bank: Bank) -> Bank:
    bank.served.grammars = UnprovenGrammars()  # type: ignore[assignment]
    bank.served.configure()
    bank.served.engine.script = says(OUTPUT)
    return bank


async def test_delivered_tokens_are_charged_although_the_output_is_invalid(paying: Bank) -> None:
    reply = await paying.served.post(CHAT, impossible(stream=True), await paying.key())
    assert '"code":"output_invalid"' in reply.text
    assert "[DONE]" not in reply.text
    num_delivered = len(OUTPUT) - 4  # the last delta is held until the check, and is never sent
    assert await paying.spent() >= num_delivered


async def test_delivered_tokens_are_charged_although_the_rows_fail(paying: Bank) -> None:
    failure = "row_failed: the grammar's automaton failed"
    paying.served.engine.script = lambda r: [
        *spoken(r, [97] * 8)[:1],
        Delta(r.id, finish=FinishReason.ERROR, error=failure),
    ]
    reply = await paying.served.post(CHAT, chat(stream=True), await paying.key())
    assert '"code":"row_failed"' in reply.text
    assert await paying.spent() >= 4


async def test_an_invalid_whole_reply_is_a_final_client_error_that_quotes_no_output(paying: Bank) -> None:
    reply = await paying.served.post(CHAT, impossible(), await paying.key())
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "output_invalid")
    assert reply.headers["x-should-retry"] == "false"
    assert SECRET not in reply.text
    assert await paying.spent() == 0


async def test_an_invalid_response_carries_its_code(paying: Bank) -> None:
    wanted = {"format": {"type": "json_schema", "name": "p", "schema": IMPOSSIBLE}}
    body = {"model": "nano", "input": "x", "text": wanted}
    key = await paying.key()
    assert (await paying.served.post(RESPONSES, body, key)).status_code == 422
    streamed = await paying.served.post(RESPONSES, {**body, "stream": True}, key)
    assert '"code":"output_invalid"' in streamed.text
    assert await paying.spent() > 0
