"""Reports are kept, but neither the file nor the rate of one sender grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.server.endpoints.feedback import store
from quicksilver.server.endpoints.feedback.store import KEPT_S, CaptureSettings, FeedbackLog, SenderLimits
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


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class RecordingStorage:
    """Answers every read with the same kinds, and counts the reads."""

    def __init__(self, has_objects: bool = True) -> None:
        self.has_objects = has_objects
        self.num_reads = 0

    async def run(self, read: object) -> frozenset[str]:
        self.num_reads += 1
        return frozenset({"edit"})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store, "time", clock)
    return clock


async def test_a_server_without_stored_objects_captures_nothing(clock: Clock) -> None:
    storage = RecordingStorage(has_objects=False)
    assert await CaptureSettings(storage).kinds_of("a") == frozenset()  # type: ignore[arg-type]
    assert storage.num_reads == 0


async def test_the_setting_of_a_project_is_read_again_after_a_while(clock: Clock) -> None:
    storage = RecordingStorage()
    found = CaptureSettings(storage)  # type: ignore[arg-type]
    assert await found.kinds_of("a") == {"edit"}
    clock.now += KEPT_S
    await found.kinds_of("a")
    assert storage.num_reads == 1
    clock.now += 1
    await found.kinds_of("a")
    assert storage.num_reads == 2


async def test_the_number_of_remembered_projects_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_OWNERS", 3)
    found = CaptureSettings(RecordingStorage())  # type: ignore[arg-type]
    for i in range(10):
        await found.kinds_of(str(i))
    assert len(found._known) <= 3
