"""Links planted in the folders that this program writes to: never followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.hub.catalogue import BaseFile
from quicksilver.hub.pull import base_path, pull_base
from tests.hub.test_pull import PARTS, Registry, base
from tests.server.conftest import Served

__all__ = ["base"]

REPORT = {"request_id": "r", "user_action": "accept"}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the same user outside the folder under test."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def test_pull_does_not_write_through_a_link(base: BaseFile, tmp_path: Path, victim: Path) -> None:
    target = base_path(base, tmp_path)
    (target.parent / "parts").mkdir(parents=True)
    for path in (target.with_suffix(".partial"), target.parent / "parts" / "001.partial"):
        path.symlink_to(victim)
    assert pull_base(base, tmp_path, lambda *_: None, Registry()).read_bytes() == b"".join(PARTS)
    assert victim.read_text() == "precious"


async def test_feedback_does_not_write_through_a_link(served: Served, victim: Path) -> None:
    path = served.services.feedback.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(victim)
    reply = await served.post("/feedback", REPORT)
    assert (reply.status_code, reply.json()["stored"]) == (200, False)
    assert victim.read_text() == "precious"
