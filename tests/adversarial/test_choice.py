"""`choice` requests whose labels cost more than the answer: all of them are reserved, bounded and charged."""

from __future__ import annotations

import pytest

from quicksilver.core import ScoreRequest, Scores
from quicksilver.errors import InvalidRequest
from tests.server.conftest import Served, chat
from tests.support.bank import Bank

CHAT = "/v1/chat/completions"
LABELS = [f"{i:02d}" + "z" * 98 for i in range(32)]
# The small tokenizer has one token per byte, and each label is scored with the end of the answer.
NUM_LABEL_TOKENS = 32 * 101


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_all_labels_are_charged(bank: Bank, stream: bool) -> None:
    key = await bank.key()
    reply = await bank.served.post(CHAT, chat(choice=LABELS, stream=stream), key)
    assert reply.status_code == 200, reply.text
    num_prompt = len(bank.served.engine.scored[0].prompt_ids)
    assert await bank.spent() == num_prompt + NUM_LABEL_TOKENS
    if not stream:
        assert reply.json()["usage"]["completion_tokens"] == NUM_LABEL_TOKENS


async def test_the_tokens_of_all_labels_are_reserved_before_the_engine_is_asked(bank: Bank) -> None:
    key = await bank.key(credits=NUM_LABEL_TOKENS - 1)
    reply = await bank.served.post(CHAT, chat(choice=LABELS), key)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "insufficient_quota")
    assert bank.served.engine.scored == []


@pytest.mark.parametrize("stream", [False, True])
async def test_labels_that_the_engine_refuses_are_a_400_and_free(bank: Bank, stream: bool) -> None:
    def refuse(request: ScoreRequest) -> Scores:
        raise InvalidRequest("the continuations have too many tokens", param="continuations")

    bank.served.engine.scorer = refuse
    reply = await bank.served.post(CHAT, chat(choice=LABELS, stream=stream), await bank.key())
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "choice")
    assert await bank.spent() == 0


async def test_a_choice_without_accounts_reports_the_tokens_of_all_labels(served: Served) -> None:
    usage = (await served.post(CHAT, chat(choice=["yes", "no", "maybe"]))).json()["usage"]
    assert usage["completion_tokens"] == len("yes") + len("no") + len("maybe") + 3


async def test_labels_longer_than_any_context_are_refused_before_they_are_encoded(served: Served) -> None:
    labels = [f"{i:03d}" + "z" * 1021 for i in range(256)]
    reply = await served.post(CHAT, chat(choice=labels))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "choice")
    assert served.engine.scored == []
