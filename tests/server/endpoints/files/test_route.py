"""/v1/files: upload, list, read, delete; what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from quicksilver.accounts import stored_files
from quicksilver.server.endpoints.files.store import sweep_files
from tests.server.conftest import Served
from tests.support.bank import Bank

FILES = "/v1/files"
CONTENT = b'{"a": 1}\n' * 1000


async def call(served: Served, method: str, path: str, **fields: Any) -> httpx.Response:
    async with served.client() as client:
        return await client.request(method, path, **fields)


async def upload(served: Served, content: bytes = CONTENT, **fields: Any) -> httpx.Response:
    form = {"purpose": "batch", **fields.pop("data", {})}
    return await call(served, "POST", FILES, files={"file": ("in.jsonl", content)}, data=form, **fields)


async def test_a_file_is_uploaded_read_and_deleted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 700)
    made = (await upload(served)).json()
    assert (made["bytes"], made["filename"], made["purpose"]) == (len(CONTENT), "in.jsonl", "batch")
    place = f"{FILES}/{made['id']}"
    assert (await served.get(place)).json() == made
    assert (await served.get(f"{place}/content")).content == CONTENT
    assert (await call(served, "DELETE", place)).json() == {"id": made["id"], "object": "file", "deleted": True}
    assert (await served.get(place)).status_code == (await served.get(f"{place}/content")).status_code == 404
    assert await served.services.storage.run(lambda objects: objects.num_bytes("")) == 0


async def test_files_are_listed_by_purpose(served: Served) -> None:
    one = (await upload(served)).json()["id"]
    two = (await upload(served, data={"purpose": "user_data", "expires_after[seconds]": "3600"})).json()
    assert two["expires_at"] > two["created_at"]

    async def found(**query: str) -> list[str]:
        return [each["id"] for each in (await call(served, "GET", FILES, params=query)).json()["data"]]

    assert await found() == await found(limit="10000") == [two["id"], one]
    assert await found(order="asc", limit="1") == [one]
    assert await found(purpose="batch") == [one]
    assert await found(purpose="vision") == []


async def test_an_expired_file_is_gone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made = (await upload(served, data={"expires_after[seconds]": "60"})).json()
    kept = (await upload(served)).json()
    place = f"{FILES}/{made['id']}"
    assert (await served.get(f"{place}/content")).content == CONTENT
    monkeypatch.setattr(stored_files.time, "time", lambda: made["expires_at"] + 1.0)
    assert (await served.get(place)).status_code == (await served.get(f"{place}/content")).status_code == 404
    assert (await served.get(FILES)).json()["data"] == [kept]
    body = {"input_file_id": made["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert (await served.post("/v1/batches", body)).status_code == 404
    sweeping = asyncio.create_task(sweep_files(served.services.storage))
    async with asyncio.timeout(60):
        while await served.services.storage.run(lambda store: store.get("", "file", made["id"])):
            await asyncio.sleep(0.01)
    sweeping.cancel()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "1" * 4000}}, 400),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "0"}}, 400),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "mischief"}}, 400),
        ({"files": {"file": ("a", b"x")}}, 400),
        ({"files": {"other": ("a", b"x")}, "data": {"purpose": "batch"}}, 400),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"y"))], "data": {"purpose": "batch"}}, 400),
        ({"files": {"file": ("a", b"x" * 2000)}, "data": {"purpose": "batch"}}, 413),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "note": "x" * 5000}}, 400),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "-1"}}, 400),
        ({"content": b"plain"}, 400),
        ({"content": b"--x\r\nbroken", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400),
        ({"content": b"", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400),
        ({"content": b"", "headers": {"content-type": "multipart/form-data; boundary=" + "x" * 300}}, 400),
    ],
)
async def test_what_is_refused(served: Served, fields: dict[str, Any], status: int) -> None:
    served.configure(file_bytes=1000)
    assert (await call(served, "POST", FILES, **fields)).status_code == status


async def test_a_project_has_a_quota(served: Served) -> None:
    served.configure(stored_bytes=len(CONTENT) + 10)
    assert (await upload(served)).status_code == 200
    assert (await upload(served)).json()["error"]["code"] == "quota_exceeded"
    served.configure(stores=False)
    assert (await upload(served)).status_code == 400


async def test_another_project_sees_nothing(served: Served, bank: Bank) -> None:
    one, other = await bank.key(), await bank.key()
    made = (await upload(served, headers=one)).json()["id"]
    assert len((await served.get(FILES, one)).json()["data"]) == 1
    assert (await served.get(FILES, other)).json()["data"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        assert (await call(served, method, f"{FILES}/{made}{path}", headers=other)).status_code == 404
    assert (await upload(served)).status_code == 401
