"""Reports are kept, but neither the file nor the rate of one sender grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.server.endpoints.feedback import store
from quicksilver.server.endpoints.feedback.store import FeedbackLog, SenderLimits
from quicksilver.server.endpoints.feedback.wire import FeedbackBody


def report(name: str) -> FeedbackBody:
    return FeedbackBody(request_id=name, user_action="accept")


def test_a_full_file_is_set_aside_and_the_newest_reports_are_kept(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path, max_bytes=500)
    for number in range(100):
        assert log.append(report(f"r{number}"))
    assert log.path.stat().st_size + log.older_path.stat().st_size < 2 * 500 + 100
    kept = log.older_path.read_text() + (log.path.read_text() if log.path.exists() else "")
    assert '"r99"' in kept
    assert '"r0"' not in kept
    assert sorted(tmp_path.iterdir()) == sorted((log.path, log.older_path))


def test_a_sender_beyond_its_rate_is_dropped_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BURST", 3)
    log = FeedbackLog(tmp_path)
    assert [log.append(report("x"), "one") for _ in range(5)] == [True] * 3 + [False] * 2
    assert log.append(report("x"), "two")


def test_the_rate_recovers_and_old_senders_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BURST", 1)
    monkeypatch.setattr(store, "MAX_SENDERS", 2)
    now = [0.0]
    limits = SenderLimits(lambda: now[0])
    assert [limits.take("one"), limits.take("one")] == [True, False]
    now[0] += 60 / store.PER_MINUTE
    assert limits.take("one")
    assert [limits.take("two"), limits.take("three")] == [True, True]
    assert limits.take("one"), "forgotten, so it starts anew"
