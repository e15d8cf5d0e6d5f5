"""Garbage collection during a graph capture, with a fake CUDA."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from quicksilver.backends.cuda.capture import capture, without_collection


class FakeGraph:
    def replay(self) -> None:
        return None


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fake CUDA capture that records its calls."""
    seen = list[str]()
    stream = SimpleNamespace(wait_stream=lambda other: None)

    @contextmanager
    def graph(made: FakeGraph, pool: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "another thread that copies would end the capture"
        seen.append("begins")
        yield
        seen.append("ends")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda other: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return seen


def test_garbage_is_collected_before_and_after_a_capture_but_not_during_it(recording: list[str]) -> None:
    capture(lambda: recording.append(f"collects {gc.isenabled()}"), torch.device("cuda"), None)
    assert recording == ["collects True", "collects True", "begins", "collects False", "ends"]
    assert gc.isenabled()


def test_a_failed_capture_restores_the_collector(recording: list[str]) -> None:
    def work() -> None:
        if "begins" in recording:
            raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        capture(work, torch.device("cuda"), None)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_without_cuda_the_work_is_its_own_replay() -> None:
    done = list[int]()
    replay = capture(lambda: done.append(1), torch.device("cpu"), None)
    assert not done
    replay()
    assert done == [1]
