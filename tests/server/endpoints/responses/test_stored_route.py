"""Stored responses: continued, read, deleted, generated in the background, compacted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quicksilver.accounts.identity import OPERATOR
from quicksilver.core import Request
from quicksilver.errors import EngineDied, LedgerUnavailable
from quicksilver.server.endpoints.responses import background, replay
from quicksilver.server.endpoints.responses.background import LiveEvents, live_events
from quicksilver.server.services import Services
from tests.server.conftest import HELLO, Served, says
from tests.server.endpoints.responses.test_route import RESPONSES, ask, named_events, prompt_text
from tests.support.bank import Bank
from tests.support.fake_engine import Step


async def call(served: Served, method: str, path: str, **fields: Any) -> httpx.Response:
    async with served.client() as client:
        return await client.request(method, path, **fields)


async def create(served: Served, given: object = "Hi", **fields: object) -> dict[str, Any]:
    response = await served.post(RESPONSES, ask(given, **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_response_is_stored_read_and_deleted(served: Served) -> None:
    made = await create(served)
    place = f"{RESPONSES}/{made['id']}"
    assert (await served.get(place)).json() == made
    assert (await call(served, "DELETE", place)).json()["deleted"] is True
    assert (await served.get(place)).status_code == (await call(served, "DELETE", place)).status_code == 404


async def test_nothing_is_stored_unless_request_and_operator_agree(served: Served) -> None:
    unstored = await create(served, store=False)
    assert unstored["store"] is False
    assert (await served.get(f"{RESPONSES}/{unstored['id']}")).status_code == 404
    stored = await create(served)
    served.configure(stores=False)
    assert (await create(served, store=True))["store"] is False
    assert (await served.get(f"{RESPONSES}/{stored['id']}")).status_code == 404
    for fields in ({"previous_response_id": stored["id"]}, {"conversation": "c"}, {"background": True}):
        refused = await served.post(RESPONSES, ask(**fields))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(fields))


async def test_a_streamed_response_is_stored_as_it_was_sent(served: Served) -> None:
    received = named_events(await served.post(RESPONSES, ask(stream=True)))
    final = received[-1]["response"]
    assert (await served.get(f"{RESPONSES}/{final['id']}")).json() == final


async def test_a_failed_stream_is_not_stored(served: Served) -> None:
    served.engine.script = lambda request: [EngineDied("the worker died")]
    assert (await served.post(RESPONSES, ask())).status_code == 503
    listed = await served.services.storage.run(lambda store: store.find("", "response"))
    assert listed == []


async def test_a_response_continues_another_without_its_instructions(served: Served) -> None:
    served.engine.script = says("Hello Ada.")
    first = await create(served, "My name is Ada.", instructions="Be brief.")
    second = await create(served, "Who am I?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    third = await create(served, "Again?", previous_response_id=second["id"])
    text = prompt_text(served)
    places = [text.index(part) for part in ("My name is Ada.", "Hello Ada.", "Who am I?", "Again?")]
    assert places == sorted(places)
    assert "Be brief." not in text
    items = (await served.get(f"{RESPONSES}/{third['id']}/input_items?order=asc")).json()
    assert [item["role"] for item in items["data"]] == ["user", "assistant", "user", "assistant", "user"]
    page = (await served.get(f"{RESPONSES}/{third['id']}/input_items?limit=1&after={items['last_id']}")).json()
    assert page["has_more"] is True
    await call(served, "DELETE", f"{RESPONSES}/{first['id']}")
    broken = await served.post(RESPONSES, ask(previous_response_id=second["id"]))
    assert (broken.status_code, broken.json()["error"]["code"]) == (404, "previous_response_not_found")


async def test_a_call_and_its_output_continue(served: Served) -> None:
    served.engine.script = says('<tool_call>{"name": "look", "arguments": {"at": "Oslo"}}</tool_call>')
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    first = await create(served, tools=tools)
    (made,) = first["output"]
    served.engine.script = says(HELLO)
    output = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    await create(served, [output], tools=tools, previous_response_id=first["id"])
    text = prompt_text(served)
    assert text.index("Oslo") < text.index("rain")


async def test_the_oldest_responses_make_room(served: Served) -> None:
    served.configure(stored_bytes=4000)
    made = [(await create(served))["id"] for _ in range(6)]
    found = [(await served.get(f"{RESPONSES}/{each}")).status_code for each in made]
    assert found[0] == 404
    assert found[-1] == 200
    assert found == sorted(found, reverse=True)


async def test_old_items_are_dropped_where_truncation_is_auto(served: Served) -> None:
    history = [{"role": "user", "content": f"<{i}>" + "x" * 900} for i in range(8)]
    assert (await served.post(RESPONSES, ask(history, max_output_tokens=8))).status_code == 400
    await create(served, history, max_output_tokens=8, truncation="auto")
    assert "<7>" in prompt_text(served)
    assert "<0>" not in prompt_text(served)


async def wait_for(served: Served, place: str, status: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (reply := (await served.get(place, headers)).json())["status"] != status:
            await asyncio.sleep(0.01)
    return dict(reply)


async def test_a_background_response_is_queued_and_completed(served: Served) -> None:
    made = await create(served, background=True)
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    place = f"{RESPONSES}/{made['id']}"
    done = await wait_for(served, place, "completed")
    assert done["output"][0]["content"][0]["text"] == HELLO
    assert (await call(served, "POST", f"{place}/cancel")).json() == done
    received = named_events(await served.get(f"{place}?stream=true"))
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    assert received[-1]["response"] == done
    assert len(named_events(await served.get(f"{place}?stream=true&starting_after=1"))) == len(received) - 2


async def test_a_background_response_may_be_streamed(served: Served) -> None:
    received = named_events(await served.post(RESPONSES, ask(background=True, stream=True)))
    direct = named_events(await served.post(RESPONSES, ask(stream=True)))
    assert [event["type"] for event in received] == [event["type"] for event in direct]
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    final = received[-1]["response"]
    assert (await served.get(f"{RESPONSES}/{final['id']}")).json() == final


async def test_a_background_stream_has_deltas_if_the_response_is_complete_before_it_is_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = replay._reply

    async def late(services: Services, owner: str, response_id: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while live_events(response_id) is not None:
                await asyncio.sleep(0.01)
        return await read(services, owner, response_id)

    monkeypatch.setattr(replay, "_reply", late)
    received = named_events(await served.post(RESPONSES, ask(background=True, stream=True)))
    assert "response.output_text.delta" in [event["type"] for event in received]
    assert received[-1]["type"] == "response.completed"


async def test_a_background_stream_is_continued_where_it_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first, go_on = says(HELLO), asyncio.Event()
    readers: list[int] = []
    follow = LiveEvents.follow

    def noted(self: LiveEvents, starting_after: int) -> AsyncGenerator[bytes, None]:
        readers.append(starting_after)
        return follow(self, starting_after)

    monkeypatch.setattr(LiveEvents, "follow", noted)
    served.engine.script = lambda request: [first(request)[0], go_on.wait, *first(request)[1:]]
    made = await create(served, background=True)
    place = f"{RESPONSES}/{made['id']}"
    whole = asyncio.create_task(served.get(f"{place}?stream=true"))
    rest = asyncio.create_task(served.get(f"{place}?stream=true&starting_after=2"))
    async with asyncio.timeout(60):
        while len(readers) < 2:
            await asyncio.sleep(0.01)
    go_on.set()
    events = named_events(await whole)
    continued = named_events(await rest)
    assert events[-1]["type"] == continued[-1]["type"] == "response.completed"
    assert continued == events[3:]
    late = named_events(await served.get(f"{place}?stream=true&starting_after=500"))
    assert [(event["type"], event["sequence_number"]) for event in late] == [("response.completed", 501)]


async def test_a_background_response_that_cannot_be_stored_reserves_nothing(served: Served, bank: Bank) -> None:
    headers = await bank.key()
    served.configure(stored_bytes=100)
    refused = await served.post(RESPONSES, ask(background=True), headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quota_exceeded")
    assert served.engine.num_open == 0
    assert await bank.spent() == 0


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}], ids=["streamed", "background"])
async def test_a_response_that_could_not_be_charged_is_not_stored(
    served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch, fields: dict[str, bool]
) -> None:
    async def settle(*entry: object) -> None:
        raise LedgerUnavailable("the ledger is locked")

    headers = await bank.key()
    monkeypatch.setattr(bank.accounts, "settle", settle)
    reply = await served.post(RESPONSES, ask(**fields), headers)
    made = named_events(reply)[0]["response"] if "stream" in fields else reply.json()
    place = f"{RESPONSES}/{made['id']}"
    if "background" in fields:
        await wait_for(served, place, "failed", headers)
    else:
        assert (await call(served, "GET", place, headers=headers)).status_code == 404


async def test_a_background_response_is_charged_when_it_is_complete(served: Served, bank: Bank) -> None:
    headers = await bank.key()
    made = (await served.post(RESPONSES, ask(background=True), headers)).json()
    await wait_for(served, f"{RESPONSES}/{made['id']}", "completed", headers)
    assert await bank.spent() > 0


async def test_a_repeated_background_request_is_not_generated_again(served: Served, bank: Bank) -> None:
    headers = {**await bank.key(), "idempotency-key": "once"}
    for body in (ask(background=True), ask(background=True, stream=True)):
        headers["idempotency-key"] += "!"
        first = await served.post(RESPONSES, body, headers)
        streamed = "stream" in body
        made = named_events(first)[0]["response"] if streamed else first.json()
        await wait_for(served, f"{RESPONSES}/{made['id']}", "completed", headers)
        await settled(bank)
        served.engine.seen.clear()
        again = await served.post(RESPONSES, body, headers)
        assert again.status_code == 200
        assert (named_events(again)[0]["response"]["id"] if streamed else again.json()["id"]) == made["id"]
        assert served.engine.seen == []


async def settled(bank: Bank) -> None:
    """Until no reservation is open."""
    async with asyncio.timeout(60):
        while True:
            account = await bank.accounts.admin(lambda a: a.organizations.get_account(OPERATOR, bank.org_id))
            if account.reserved == 0:
                return
            await asyncio.sleep(0.01)


async def test_a_cancelled_background_stream_is_charged_as_far_as_it_came(
    served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    headers, first, never = await bank.key(), says(HELLO), asyncio.Event()
    served.engine.script = lambda request: [first(request)[0], never.wait]
    streaming = asyncio.create_task(served.post(RESPONSES, ask(background=True, stream=True), headers))
    async with asyncio.timeout(60):
        while not (found := await served.services.storage.run(lambda store: list(store.every("response")))):
            await asyncio.sleep(0.01)
    _, stored = found[0]
    assert (await call(served, "POST", f"{RESPONSES}/{stored.id}/cancel", headers=headers)).status_code == 200
    kinds = [event["type"] for event in named_events(await streaming)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert not {"response.completed", "response.incomplete", "response.failed"} & set(kinds)
    await settled(bank)
    assert await bank.spent() > 0


async def test_a_background_response_fails_with_its_engine(served: Served) -> None:
    first = says(HELLO)

    def script(request: Request) -> list[Step]:
        return [first(request)[0], EngineDied("the worker died")]

    served.engine.script = script
    made = await create(served, background=True)
    failed = await wait_for(served, f"{RESPONSES}/{made['id']}", "failed")
    assert failed["error"] == {"code": "server_error", "message": "the worker died"}


@pytest.mark.parametrize(("method", "suffix"), [("POST", "/cancel"), ("DELETE", "")])
async def test_cancelling_and_deleting_end_the_work(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, suffix: str
) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    first, never = says(HELLO), asyncio.Event()
    served.engine.script = lambda request: [first(request)[0], never.wait, *first(request)[1:]]
    made = await create(served, background=True)
    assert served.engine.num_open == 1
    assert (await call(served, method, f"{RESPONSES}/{made['id']}{suffix}")).status_code == 200
    async with asyncio.timeout(10):
        while served.engine.num_open:
            await asyncio.sleep(0.01)
    after = await served.get(f"{RESPONSES}/{made['id']}")
    assert after.status_code == 404 if method == "DELETE" else after.json()["status"] == "cancelled"


async def test_work_that_was_interrupted_is_reported_as_failed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LEASE_S", -5)
    never = asyncio.Event()
    served.engine.script = lambda request: [says(HELLO)(request)[0], never.wait]
    made = await create(served, background=True)
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    reply = (await served.get(f"{RESPONSES}/{made['id']}")).json()
    assert (reply["status"], reply["error"]["code"]) == ("failed", "server_error")
    async with asyncio.timeout(10):
        while served.engine.num_open:
            await asyncio.sleep(0.01)


async def test_only_background_responses_are_cancelled(served: Served) -> None:
    made = await create(served)
    assert (await call(served, "POST", f"{RESPONSES}/{made['id']}/cancel")).status_code == 400
    assert (await served.post(RESPONSES, ask(background=True, store=False))).json()["error"]["param"] == "background"


async def test_a_compacted_conversation_keeps_the_words_of_the_user(served: Served) -> None:
    first = await create(served, "My name is Ada.")
    served.engine.script = says("Ada said her name.")
    compacted = await served.post(
        f"{RESPONSES}/compact", {"model": "nano", "previous_response_id": first["id"], "input": "Go on."}
    )
    reply = compacted.json()
    assert reply["object"] == "response.compaction"
    assert [item["type"] for item in reply["output"]] == ["message", "message", "compaction"]
    assert reply["usage"]["output_tokens"] > 0
    await create(served, [*reply["output"], {"role": "user", "content": "Who am I?"}])
    text = prompt_text(served)
    assert text.index("Go on.") < text.index("Ada said her name.") < text.index("Who am I?")
    forged = {"type": "compaction", "encrypted_content": "\u00fc"}
    assert (await served.post(RESPONSES, ask([forged]))).status_code == 400


async def test_a_conversation_that_cannot_be_compacted_is_refused(served: Served) -> None:
    calls = [{"type": "function_call", "call_id": "", "name": "f", "arguments": ""}] * 200
    refused = await served.post(f"{RESPONSES}/compact", {"model": "nano", "input": calls})
    assert refused.status_code == 400


async def test_input_tokens_are_counted(served: Served) -> None:
    counted = (await served.post(f"{RESPONSES}/input_tokens", ask("How long?"))).json()
    made = await create(served, "How long?")
    assert counted == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}


async def test_another_project_sees_nothing(served: Served, bank: Bank) -> None:
    one, other = await bank.key(), await bank.key()
    made = (await served.post(RESPONSES, ask(), one)).json()["id"]
    place = f"{RESPONSES}/{made}"
    assert (await served.get(place, one)).status_code == 200
    for method, path in (
        ("GET", place),
        ("DELETE", place),
        ("POST", f"{place}/cancel"),
        ("GET", f"{place}/input_items"),
    ):
        assert (await call(served, method, path, headers=other)).status_code == 404
    assert (await served.post(RESPONSES, ask(previous_response_id=made), other)).status_code == 404
    assert (await served.get(place)).status_code == 401


WRITER = """
import sys
from pathlib import Path
from quicksilver.accounts.objects import open_local
from quicksilver.accounts.records import StoredObject
store = open_local(Path(sys.argv[1]))
for number in range(10**6):
    store.put("", [StoredObject("response", f"resp_{number}", b"x" * 1000)])
    print(number, flush=True)
"""


def test_what_was_stored_survives_a_kill(tmp_path: Path) -> None:
    from quicksilver.accounts.objects import open_local

    path = tmp_path / "objects.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [int(line) for line in writer.stdout.read().split()]
    store = open_local(path)
    assert all(store.get("", "response", f"resp_{number}") for number in told)
    store.close()
