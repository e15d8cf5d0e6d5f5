"""/v1/conversations: items that responses continue and extend."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from quicksilver.server.endpoints.conversations import route
from tests.server.conftest import HELLO, Served
from tests.support.bank import Bank
from tests.support.small_tokenizer import small_tokenizer

CONVERSATIONS = "/v1/conversations"
ITEM = {"type": "message", "role": "user", "content": "My name is Ada."}


async def call(served: Served, method: str, path: str, **fields: Any) -> httpx.Response:
    async with served.client() as client:
        return await client.request(method, path, **fields)


async def create(served: Served, **fields: object) -> str:
    return str((await served.post(CONVERSATIONS, fields)).json()["id"])


async def texts(served: Served, conversation: str, **query: object) -> list[Any]:
    listed = await call(served, "GET", f"{CONVERSATIONS}/{conversation}/items", params={"order": "asc", **query})
    return [item["content"][0]["text"] for item in listed.json()["data"]]


async def test_a_conversation_is_created_read_and_deleted(served: Served) -> None:
    made = (await call(served, "POST", CONVERSATIONS)).json()
    place = f"{CONVERSATIONS}/{made['id']}"
    assert (made["object"], made["metadata"]) == ("conversation", {})
    changed = (await served.post(place, {"metadata": {"topic": "names"}})).json()
    assert changed == (await served.get(place)).json() == {**made, "metadata": {"topic": "names"}}
    assert (await call(served, "DELETE", place)).json() == {
        "id": made["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
    assert (await served.get(place)).status_code == (await served.get(f"{place}/items")).status_code == 404


async def test_items_are_added_listed_and_deleted(served: Served) -> None:
    conversation = await create(served, items=[ITEM])
    items = f"{CONVERSATIONS}/{conversation}/items"
    added = (await served.post(items, {"items": [{**ITEM, "content": "I live in Oslo."}]})).json()["data"]
    assert await texts(served, conversation) == ["My name is Ada.", "I live in Oslo."]
    assert await texts(served, conversation, limit=1) == ["My name is Ada."]
    last = added[0]["id"]
    assert (await served.get(f"{items}/{last}")).json()["content"][0]["text"] == "I live in Oslo."
    assert (await call(served, "DELETE", f"{items}/{last}")).json()["id"] == conversation
    assert (await served.get(f"{items}/{last}")).status_code == 404
    other = await create(served)
    first = (await served.get(items)).json()["first_id"]
    assert (await served.get(f"{CONVERSATIONS}/{other}/items/{first}")).status_code == 404


async def test_a_response_continues_and_extends_a_conversation(served: Served) -> None:
    conversation = await create(served, items=[ITEM])
    body = {"model": "nano", "input": "Who am I?", "conversation": conversation}
    reply = (await served.post("/v1/responses", body)).json()
    assert reply["conversation"] == {"id": conversation}
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    assert prompt.index("My name is Ada.") < prompt.index("Who am I?")
    question, answer = (await texts(served, conversation))[1:]
    assert (question, answer) == ("Who am I?", HELLO)
    await served.post("/v1/responses", {**body, "conversation": {"id": conversation}, "input": "And now?"})
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    assert prompt.index("Who am I?") < prompt.index("And now?")


async def test_copied_items_stay_in_their_conversation(served: Served) -> None:
    first = await create(served, items=[ITEM])
    copied = (await served.get(f"{CONVERSATIONS}/{first}/items")).json()["data"]
    second = await create(served, items=copied)
    await served.post(f"{CONVERSATIONS}/{second}/items", {"items": copied})
    body = {"model": "nano", "input": [*copied, {"role": "user", "content": "Who?"}], "conversation": second}
    assert (await served.post("/v1/responses", body)).status_code == 200
    assert await texts(served, first) == ["My name is Ada."]
    assert await texts(served, second) == [*["My name is Ada."] * 3, "Who?", HELLO]
    reference = {"type": "item_reference", "id": copied[0]["id"]}
    assert (await served.post(CONVERSATIONS, {"items": [reference]})).json()["error"]["param"] == "items.0"


async def test_an_id_that_was_sent_is_no_key(served: Served) -> None:
    conversation = await create(served, items=[{**ITEM, "id": "x" * 100_000}])
    (item,) = (await served.get(f"{CONVERSATIONS}/{conversation}/items")).json()["data"]
    assert len(item["id"]) < 64
    assert (await served.get(f"{CONVERSATIONS}/{conversation}/items/{item['id']}")).json() == item


async def test_a_long_conversation_is_refused_or_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{**ITEM, "content": f"<{i}>" + "x" * 200} for i in range(6)]
    conversation = await create(served, items=items)
    served.configure(body_bytes=900)
    body = {"model": "nano", "input": "Go on.", "conversation": conversation}
    refused = await served.post("/v1/responses", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await served.post("/v1/responses", {**body, "truncation": "auto"})).status_code == 200
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    assert "<5>" in prompt
    assert "<0>" not in prompt
    served.configure(body_bytes=2**20)
    monkeypatch.setattr("quicksilver.server.endpoints.responses.turn.MAX_ITEMS", 4)
    assert (await served.post("/v1/responses", body)).status_code == 400
    assert (await served.post("/v1/responses", {**body, "truncation": "auto"})).status_code == 200
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    assert prompt.index("Hello, w") < prompt.rindex("Go on.")
    assert "<0>" not in prompt


async def test_a_chain_contains_the_conversation_before_it_and_all_after_it(served: Served) -> None:
    conversation = await create(served, items=[ITEM])
    body = {"model": "nano", "input": "First.", "conversation": conversation}
    first = (await served.post("/v1/responses", body)).json()
    await served.post("/v1/responses", {**body, "input": "Elsewhere."})
    chained = {"model": "nano", "input": "Second.", "previous_response_id": first["id"]}
    second = (await served.post("/v1/responses", chained)).json()
    await served.post("/v1/responses", {"model": "nano", "input": "Third.", "previous_response_id": second["id"]})
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    places = [prompt.index(part) for part in ("My name is Ada.", "First.", "Second.", "Third.")]
    assert places == sorted(places)
    assert "Elsewhere." not in prompt


async def test_a_project_that_stores_too_much_is_refused(served: Served) -> None:
    served.configure(stored_bytes=2000)
    conversation = await create(served)
    long = {**ITEM, "content": "x" * 2000}
    for path, body in (
        (CONVERSATIONS, {"items": [long]}),
        (f"{CONVERSATIONS}/{conversation}/items", {"items": [long]}),
        ("/v1/responses", {"model": "nano", "input": "x" * 2000, "conversation": conversation}),
    ):
        refused = await served.post(path, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quota_exceeded")
    assert served.engine.seen == []
    assert await texts(served, conversation) == []


async def test_large_bodies_are_parsed_in_a_thread(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    read = route.as_listed

    def observed(item: dict[str, Any], *, keeps_id: bool) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return read(item, keeps_id=keeps_id)

    monkeypatch.setattr(route, "as_listed", observed)
    conversation = await create(served, items=[{**ITEM, "content": "x" * 100_000}])
    await served.post(f"{CONVERSATIONS}/{conversation}/items", {"items": [{**ITEM, "content": "x" * 100_000}]})
    assert len(threads) == 2
    assert all(name.startswith("parse-body") for name in threads)


async def test_a_page_of_large_items_is_short(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.server.storage.PAGE_BYTES", 500)
    conversation = await create(served, items=[{**ITEM, "content": "x" * 300}] * 3)
    page = (await served.get(f"{CONVERSATIONS}/{conversation}/items")).json()
    assert (len(page["data"]), page["has_more"]) == (1, True)
    rest = (await served.get(f"{CONVERSATIONS}/{conversation}/items?after={page['last_id']}")).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, True)


async def test_what_is_refused(served: Served, monkeypatch: Any) -> None:
    unread = [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]
    assert (await served.post(CONVERSATIONS, {"items": unread})).status_code == 400
    assert (await served.post(CONVERSATIONS, {"items": [ITEM] * 21})).status_code == 400
    both = {"model": "nano", "input": "x", "conversation": "c", "previous_response_id": "r"}
    assert (await served.post("/v1/responses", both)).json()["error"]["param"] == "conversation"
    missing = await served.post("/v1/responses", {"model": "nano", "input": "x", "conversation": "conv_none"})
    assert missing.status_code == 404
    monkeypatch.setattr("quicksilver.server.endpoints.conversations.route.MAX_ITEMS", 1)
    conversation = await create(served, items=[ITEM])
    assert (await served.post(f"{CONVERSATIONS}/{conversation}/items", {"items": [ITEM]})).status_code == 400
    served.configure(stores=False)
    assert (await served.post(CONVERSATIONS, {})).status_code == 400


async def test_another_project_sees_nothing(served: Served, bank: Bank) -> None:
    one, other = await bank.key(), await bank.key()
    conversation = (await served.post(CONVERSATIONS, {"items": [ITEM]}, one)).json()["id"]
    place = f"{CONVERSATIONS}/{conversation}"
    assert (await served.get(place, one)).status_code == 200
    for method, path in (("GET", place), ("DELETE", place), ("GET", f"{place}/items"), ("POST", place)):
        assert (await call(served, method, path, headers=other, json={})).status_code == 404
    body = {"model": "nano", "input": "x", "conversation": conversation}
    assert (await served.post("/v1/responses", body, other)).status_code == 404
    assert (await served.get(place)).status_code == 401
