"""/v1/batches: lines answered once, at half price, resumed by another process, cancelled, refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest

from quicksilver.accounts.records import StoredObject
from quicksilver.core import Request
from quicksilver.errors import EngineUnavailable
from quicksilver.server.endpoints.batches import lines, runner
from quicksilver.server.endpoints.batches.runner import BatchRunner
from quicksilver.server.storage import read_json, write_json
from tests.server.conftest import HELLO, Served, chat, says
from tests.server.endpoints.files.test_route import call, upload
from tests.support.bank import Bank
from tests.support.fake_engine import Step

BATCHES, CHAT = "/v1/batches", "/v1/chat/completions"
Headers = dict[str, str] | None


def line(number: int, url: str = CHAT, **fields: object) -> dict[str, Any]:
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": chat(f"{number}"), **fields}


async def create(
    served: Served, given: list[dict[str, Any]] | bytes, headers: Headers = None, **fields: object
) -> dict[str, Any]:
    content = given if isinstance(given, bytes) else b"\n".join(map(orjson.dumps, given))
    file = (await upload(served, content, headers=headers)).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", "metadata": {"a": "b"}, **fields}
    response = await served.post(BATCHES, body, headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def wait_for(served: Served, batch: dict[str, Any], *statuses: str, headers: Headers = None) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (reply := (await served.get(f"{BATCHES}/{batch['id']}", headers)).json())["status"] not in statuses:
            await asyncio.sleep(0.01)
    return dict(reply)


async def rows(served: Served, file_id: str, headers: Headers = None) -> list[dict[str, Any]]:
    content = (await served.get(f"/v1/files/{file_id}/content", headers)).content
    return [orjson.loads(row) for row in content.splitlines()]


async def test_every_line_is_answered_in_a_file(served: Served) -> None:
    made = await create(served, [line(i) for i in range(20)])
    assert (made["status"], made["metadata"]) == ("validating", {"a": "b"})
    done = await wait_for(served, made, "completed")
    assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert done["error_file_id"] is None
    results = await rows(served, done["output_file_id"])
    assert {row["custom_id"] for row in results} == {f"line-{i}" for i in range(20)}
    assert all(row["response"]["body"]["choices"][0]["message"]["content"] == HELLO for row in results)
    assert (await served.get(BATCHES)).json()["data"] == [done]
    assert len(served.engine.seen) == 20
    assert all(request.is_batch and not request.start_within_s for request in served.engine.seen)


async def test_lines_that_fail_are_in_a_file_of_their_own(served: Served) -> None:
    bad = {**line(1), "body": chat(temperature=9)}
    done = await wait_for(served, await create(served, [line(0), bad]), "completed")
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (row,) = await rows(served, done["error_file_id"])
    assert (row["custom_id"], row["response"]["status_code"]) == ("line-1", 400)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"not json", "invalid_line"),
        (orjson.dumps({"custom_id": "x"}), "invalid_line"),
        (orjson.dumps(line(0, url="/v1/completions")), "mismatched_endpoint"),
        (orjson.dumps({**line(0), "body": chat(stream=True)}), "invalid_line"),
        (orjson.dumps({**line(0), "body": chat(background=True)}), "invalid_line"),
        (b"\n".join([orjson.dumps(line(0))] * 2), "duplicate_custom_id"),
    ],
)
async def test_a_file_with_errors_fails_the_batch(served: Served, content: bytes, code: str) -> None:
    failed = await wait_for(served, await create(served, content), "failed")
    assert failed["errors"]["data"][0]["code"] == code
    assert served.engine.seen == []


async def test_what_is_refused(served: Served) -> None:
    file = (await upload(served, data={"purpose": "user_data"})).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    assert (await served.post(BATCHES, body)).status_code == 400
    assert (await served.post(BATCHES, {**body, "input_file_id": "none"})).status_code == 404
    assert (await served.post(BATCHES, {**body, "endpoint": "/v1/embeddings"})).status_code == 400
    assert (await served.get(f"{BATCHES}/none")).status_code == 404


async def test_a_project_that_stores_too_much_makes_no_batch(served: Served) -> None:
    file = (await upload(served, orjson.dumps(line(0)))).json()["id"]
    kept = await served.services.storage.run(lambda store: store.num_bytes(""))
    served.configure(stored_bytes=kept + 100)
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    refused = await served.post(BATCHES, body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quota_exceeded")
    assert (await served.get(BATCHES)).json()["data"] == []


async def test_a_line_is_tried_again_until_the_engine_is_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "FIRST_PAUSE_S", 0.01)
    tries = []

    def script(request: Request) -> list[Step]:
        tries.append(request)
        return [EngineUnavailable("full")] if len(tries) < 3 else says(HELLO)(request)

    served.engine.script = script
    done = await wait_for(served, await create(served, [line(0)]), "completed")
    assert done["request_counts"]["completed"] == 1


async def test_a_batch_is_cancelled(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RENEW_S", 0.01)
    served.configure(batch_lines=1)
    never = asyncio.Event()

    def script(request: Request) -> list[Step]:
        return [never.wait] if len(served.engine.seen) > 1 else says(HELLO)(request)

    served.engine.script = script
    made = await create(served, [line(i) for i in range(3)])
    async with asyncio.timeout(10):
        while len(served.engine.seen) < 2:
            await asyncio.sleep(0.01)
    cancelling = (await call(served, "POST", f"{BATCHES}/{made['id']}/cancel")).json()
    assert cancelling["status"] in ("cancelling", "cancelled")
    done = await wait_for(served, made, "cancelled")
    assert done["request_counts"] == {"total": 3, "completed": 1, "failed": 0}
    assert len(await rows(served, done["output_file_id"])) == 1
    assert (await call(served, "POST", f"{BATCHES}/{made['id']}/cancel")).json() == done


async def test_lines_beyond_the_window_are_reported(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.server.endpoints.batches.route.WINDOW_S", -1)
    expired = await wait_for(served, await create(served, [line(0)]), "expired")
    (row,) = await rows(served, expired["error_file_id"])
    assert row["error"]["code"] == "batch_expired"


async def test_another_process_continues_without_the_lines_that_were_answered(served: Served) -> None:
    """The batch of a process that died: its lease is over, and two of its lines have results."""
    made = await create(served, [line(i) for i in range(6)])
    done = await wait_for(served, made, "completed")
    results = await rows(served, done["output_file_id"])
    half = {**made, "status": "in_progress", "id": "batch_half"}
    dead = StoredObject(
        "batch",
        "batch_half",
        write_json({"reply": half, "key_id": None}),
        is_open=True,
        leased_by="dead",
        leased_until=1,
    )
    finished = [StoredObject("line", f"batch_half/{i:06d}", write_json(results[i]), "batch_half") for i in range(2)]
    await served.services.storage.put("", dead, *finished)
    served.engine.seen.clear()
    BatchRunner(served.app).start()
    resumed = await wait_for(served, {"id": "batch_half"}, "completed")
    assert resumed["request_counts"]["completed"] == 6
    assert len(served.engine.seen) == 4


async def test_the_lease_of_a_living_process_is_respected(served: Served) -> None:
    held = StoredObject("batch", "b", b"{}", is_open=True, leased_by="other", leased_until=int(time.time()) + 60)
    await served.services.storage.put("", held)
    assert await served.services.storage.run(lambda store: store.claim("batch", "me", 10)) is None


async def test_lines_cost_half_and_are_charged_once(served: Served, bank: Bank) -> None:
    headers = await bank.key()
    await served.post(CHAT, chat("0"), headers)
    whole_price = await bank.spent()
    made = await create(served, [line(0)], headers)
    done = await wait_for(served, made, "completed", headers=headers)
    assert await bank.spent() == whole_price + (whole_price + 1) // 2
    # A line that was charged and whose result was lost is replayed.
    stored = await served.services.storage.get(await owner_of(served, headers), "batch", made["id"])
    again = {**read_json(stored), "reply": {**made, "status": "in_progress"}}
    lost = StoredObject("batch", made["id"], write_json(again), is_open=True, leased_by="dead", leased_until=1)
    await served.services.storage.put(await owner_of(served, headers), lost)
    served.engine.seen.clear()
    BatchRunner(served.app).start()
    await wait_for(served, made, "completed", headers=headers)
    assert await bank.spent() == whole_price + (whole_price + 1) // 2
    assert served.engine.seen == []
    assert len(await rows(served, done["output_file_id"], headers)) == 1


async def owner_of(served: Served, headers: dict[str, str]) -> str:
    accounts = served.services.accounts
    assert accounts is not None
    return (await accounts.authenticate(headers["authorization"].removeprefix("Bearer "))).tenant


async def test_another_project_sees_nothing(served: Served, bank: Bank) -> None:
    one, other = await bank.key(), await bank.key()
    made = await create(served, [line(0)], one)
    await wait_for(served, made, "completed", headers=one)
    assert (await served.get(BATCHES, other)).json()["data"] == []
    place = f"{BATCHES}/{made['id']}"
    assert (await served.get(place, other)).status_code == 404
    assert (await call(served, "POST", f"{place}/cancel", headers=other)).status_code == 404
    body = {"input_file_id": made["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    assert (await served.post(BATCHES, body, other)).status_code == 404
