"""Settings of projects: read once, then remembered for a while."""

from __future__ import annotations

import pytest

from quicksilver.server.endpoints.feedback import settings
from quicksilver.server.endpoints.feedback.settings import KEPT_S, CaptureSettings


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
    monkeypatch.setattr(settings, "time", clock)
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
    monkeypatch.setattr(settings, "MAX_OWNERS", 3)
    found = CaptureSettings(RecordingStorage())  # type: ignore[arg-type]
    for i in range(10):
        await found.kinds_of(str(i))
    assert len(found._known) <= 3
