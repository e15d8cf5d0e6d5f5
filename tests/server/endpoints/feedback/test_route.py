"""Reports of editors."""

from __future__ import annotations

import json

from tests.server.conftest import Served


async def test_feedback_is_kept_line_by_line(served: Served) -> None:
    for action in ("accept", "reject", "ignore"):
        body = {"request_id": "cmpl-1", "provider_name": "zed", "user_action": action, "provider_version": "1"}
        response = await served.post("/feedback", body)
        assert (response.status_code, response.json()) == (200, {"stored": True})
    path = served.services.config.home / "feedback.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["user_action"] for line in lines] == ["accept", "reject", "ignore"]
    assert (path.stat().st_mode & 0o777) == 0o600
