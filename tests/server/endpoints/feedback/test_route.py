"""Reports of editors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.service import open_admin
from quicksilver.server.endpoints.feedback import store
from quicksilver.tuning.feedback import CAPTURE, FEEDBACK, REPORTS_OWNER, kto_lines, read_reports
from tests.server.conftest import Served
from tests.support.bank import Bank


async def test_feedback_is_kept_line_by_line(served: Served) -> None:
    for action in ("accept", "reject", "ignore"):
        body = {"request_id": "cmpl-1", "provider_name": "zed", "user_action": action, "provider_version": "1"}
        response = await served.post("/feedback", body)
        assert (response.status_code, response.json()) == (200, {"stored": True})
    path = served.services.config.home / "feedback.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["user_action"] for line in lines] == ["accept", "reject", "ignore"]
    assert (path.stat().st_mode & 0o777) == 0o600


def report(reply_id: str, action: str) -> dict[str, str]:
    return {"request_id": reply_id, "user_action": action}


async def test_reports_to_one_server_with_accounts_are_exported_elsewhere(
    served: Served, bank: Bank, tmp_path: Path
) -> None:
    """Another process reads the database, with a home folder of its own."""
    for reply_id, action in (("cmpl-1", "reject"), ("cmpl-1", "accept"), ("cmpl-2", "ignore")):
        assert (await served.post("/feedback", report(reply_id, action))).json() == {"stored": True}
    assert not (served.services.config.home / "feedback.jsonl").exists()
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "feedback.jsonl").write_text(json.dumps({"time": 1, **report("cmpl-2", "accept")}) + "\n")
    with (home / "feedback.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1, **report("cmpl-3", "reject")}) + "\n")
    admin = open_admin(f"sqlite:///{tmp_path}/books.db", AccountsConfig())
    try:
        objects = ObjectStore(admin.store)
        reports = read_reports(home, objects)
        assert reports == {"cmpl-1": "accept", "cmpl-2": "ignore", "cmpl-3": "reject"}
        row = {"prompt": "a", "suffix": "", "completion": "b"}
        objects.put("project", [StoredObject(CAPTURE, "cmpl-1", json.dumps(row).encode())])
        assert [line["source"] for line in kto_lines(objects, "project", reports)] == ["accept"]
    finally:
        admin.store.close()


async def test_reports_in_the_database_are_bounded(served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TRIM_EVERY", 1)
    monkeypatch.setattr(served.services.feedback, "_max_bytes", 400)
    for number in range(30):
        await served.post("/feedback", report(f"r{number}", "accept"))
    kept = await served.services.storage.run(lambda objects: objects.find(REPORTS_OWNER, FEEDBACK))
    assert kept is not None
    assert "r29" in [each.id for each in kept]
    assert sum(len(each.body) for each in kept) <= 400
    monkeypatch.setattr(store, "BURST", 0)
    served.services.feedback._limits._buckets.clear()
    assert (await served.post("/feedback", report("dropped", "accept"))).json() == {"stored": False}
