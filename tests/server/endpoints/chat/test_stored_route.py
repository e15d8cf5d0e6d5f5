"""Stored chat completions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import HELLO, Served, chat, events
from tests.support.bank import Bank

CHAT = "/v1/chat/completions"


async def call(served: Served, method: str, path: str, **fields: Any) -> httpx.Response:
    async with served.client() as client:
        return await client.request(method, path, **fields)


async def test_a_completion_is_stored_only_on_request(served: Served) -> None:
    await served.post(CHAT, chat())
    assert (await served.get(CHAT)).json()["data"] == []
    made = (await served.post(CHAT, chat(store=True, metadata={"a": "b"}))).json()
    (listed,) = (await served.get(CHAT)).json()["data"]
    assert listed == (await served.get(f"{CHAT}/{made['id']}")).json() == {**made, "metadata": {"a": "b"}}
    served.configure(stores=False)
    assert (await served.post(CHAT, chat(store=True))).status_code == 200
    assert (await served.get(CHAT)).json()["data"] == []


async def test_a_streamed_completion_is_stored_whole(served: Served) -> None:
    chunks = events(await served.post(CHAT, chat(store=True, stream=True, n=2)))
    stored = (await served.get(f"{CHAT}/{chunks[0]['id']}")).json()
    assert [choice["message"]["content"] for choice in stored["choices"]] == [HELLO, HELLO]


async def test_metadata_changes_and_filters(served: Served) -> None:
    one, two = [(await served.post(CHAT, chat(f"{i}", store=True))).json()["id"] for i in range(2)]
    changed = (await served.post(f"{CHAT}/{one}", {"metadata": {"topic": "x"}})).json()
    assert changed["metadata"] == {"topic": "x"}

    async def found(**query: str) -> list[str]:
        listed = await call(served, "GET", CHAT, params=query)
        return [each["id"] for each in listed.json()["data"]]

    assert await found() == [one, two]
    assert await found(order="desc") == [two, one]
    assert await found(after=one) == [two]
    assert await found(**{"metadata[topic]": "x"}) == [one]
    assert await found(**{"metadata[topic]": "y"}) == await found(model="other") == []
    assert await found(model="mercury-2", limit="1") == [one]


async def test_a_filter_reads_every_page(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.server.storage.PAGE_BYTES", 1)
    wanted = {"topic": "x"}
    for i in range(3):
        await served.post(CHAT, chat(f"{i}", store=True))
        await served.post(CHAT, chat(f"{i}", store=True, metadata=wanted))
    listed = (await served.get(f"{CHAT}?metadata[topic]=x&limit=2")).json()
    assert (len(listed["data"]), listed["has_more"]) == (2, True)
    rest = (await served.get(f"{CHAT}?metadata[topic]=x&limit=2&after={listed['last_id']}")).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert all(reply["metadata"] == wanted for reply in [*listed["data"], *rest["data"]])


async def test_messages_and_deletion(served: Served) -> None:
    made = (await served.post(CHAT, chat("Hello there", store=True))).json()["id"]
    (message,) = (await served.get(f"{CHAT}/{made}/messages")).json()["data"]
    assert (message["role"], message["content"]) == ("user", "Hello there")
    assert (await call(served, "DELETE", f"{CHAT}/{made}")).json()["deleted"] is True
    assert (await served.get(f"{CHAT}/{made}")).status_code == 404


async def test_the_model_list_of_the_path_is_no_completion(served: Served) -> None:
    assert (await served.get(f"{CHAT}/models")).json()["object"] == "list"


async def test_another_project_sees_nothing(served: Served, bank: Bank) -> None:
    one, other = await bank.key(), await bank.key()
    made = (await served.post(CHAT, chat(store=True), one)).json()["id"]
    assert len((await served.get(CHAT, one)).json()["data"]) == 1
    assert (await served.get(CHAT, other)).json()["data"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", ""), ("GET", "/messages")):
        assert (await call(served, method, f"{CHAT}/{made}{path}", headers=other, json={})).status_code == 404
