"""Capture of suggestions: off by default, the same bytes to the client, joined with feedback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quicksilver.core import FinishReason, Request
from quicksilver.server.endpoints.feedback import store
from quicksilver.tuning.feedback import CAPTURE, kto_lines, read_reports, set_capture
from tests.server.conftest import Served, says
from tests.server.endpoints.edits.test_edit import EDIT, PROMPT, REWRITTEN, edit
from tests.support.bank import Bank
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

FIM, COMPLETIONS = "/v1/fim/completions", "/v1/completions"
GAP = {"model": "mercury-edit", "prompt": "def add(a, b):\n    return ", "suffix": "\n"}


async def turn_on(served: Served, *kinds: str, owner: str = "") -> None:
    await served.services.storage.run(lambda store: set_capture(store, owner, kinds))


async def captures(served: Served, owner: str = "") -> list[dict[str, Any]]:
    found = await served.services.storage.run(lambda store: store.find(owner, CAPTURE, limit=100))
    return [json.loads(each.body) for each in found or []]


async def test_nothing_is_captured_unless_the_project_turned_it_on(served: Served) -> None:
    served.engine.script = says("a + b")
    await turn_on(served, "edit")
    assert (await served.post(FIM, GAP)).status_code == 200
    assert await captures(served) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [FIM, COMPLETIONS])
async def test_an_infill_is_captured(served: Served, path: str, stream: bool) -> None:
    served.engine.script = says("a + b")
    await turn_on(served, "fim")
    assert (await served.post(path, {**GAP, "stream": stream})).status_code == 200
    assert await captures(served) == [{"prompt": GAP["prompt"], "suffix": "\n", "completion": "a + b"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_edit_is_captured_as_the_region_that_was_shown(served: Served, stream: bool) -> None:
    served.engine.script = says(REWRITTEN + "\n```\nThat adds the name.")
    await turn_on(served, "edit")
    assert (await served.post(EDIT, edit(stream=stream))).status_code == 200
    assert await captures(served) == [{"edit": PROMPT, "answer": REWRITTEN}]


async def test_an_answer_that_was_cut_off_is_not_captured(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        return spoken(request, small_tokenizer().encode("a +"), 4, FinishReason.LENGTH)

    served.engine.script = script
    await turn_on(served, "fim")
    assert (await served.post(FIM, GAP)).status_code == 200
    assert await captures(served) == []


async def test_feedback_is_joined_by_the_id_of_the_reply(served: Served) -> None:
    served.engine.script = says("a + b")
    await turn_on(served, "fim")
    ids = [(await served.post(FIM, GAP)).json()["id"] for _ in range(2)]
    await served.post("/feedback", {"request_id": ids[1], "user_action": "accept"})
    reports = read_reports(served.services.config.home)
    (line,) = await served.services.storage.run(lambda store: list(kto_lines(store, "", reports)))
    assert (line["label"], line["completion"], line["source"]) == (True, "a + b", "accept")


async def test_the_setting_of_one_project_does_not_apply_to_another(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEPT_S", 0.0)
    mine, other = await bank.key(), await bank.key()
    owners = [(await bank.accounts.authenticate(key["authorization"].split(" ")[1])).tenant for key in (mine, other)]
    bank.served.engine.script = says("a + b")
    await turn_on(bank.served, "fim", owner=owners[0])
    for key in (mine, other):
        assert (await bank.served.post(FIM, GAP, key)).status_code == 200
    assert [len(await captures(bank.served, owner)) for owner in owners] == [1, 0]
