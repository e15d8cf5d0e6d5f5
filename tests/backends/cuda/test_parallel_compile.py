"""Kernels that are compiled in threads before graphs are captured, with a fake Triton and a fake CUDA.

`kernels/compile_in_threads.py` compiles a backend with the real Triton.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager

import pytest
import torch

from quicksilver.backends.cuda import capture as capture_module
from quicksilver.backends.cuda import parallel_compile
from quicksilver.backends.cuda.capture import capture
from quicksilver.backends.cuda.parallel_compile import active_compilation, compiled_in_threads

CUDA = torch.device("cuda")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened: runs of the work, and captures."""
    seen = list[str]()

    def fake(work: Callable[[], None], device: torch.device, pool: object) -> Callable[[], None]:
        work()
        seen.append("captured")
        return lambda: seen.append("replayed")

    @contextmanager
    def mode(executor: Executor) -> Iterator[tuple[parallel_compile.Compilation, list[Future[object]]]]:
        compilation = parallel_compile.Compilation(executor)
        token = parallel_compile._active.set(compilation)
        seen.append("launches compile")
        try:
            yield compilation, []
        finally:
            parallel_compile._active.reset(token)
            seen.append("launches run")

    monkeypatch.setattr(capture_module, "_capture", fake)
    monkeypatch.setattr(parallel_compile, "_launches_compile", mode)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return seen


def submitting(key: str, compile_: Callable[[], object]) -> Callable[[], None]:
    """Work that launches a kernel, which is compiled while launches compile."""

    def work() -> None:
        if (compilation := active_compilation()) is not None:
            compilation.submit(key, compile_)

    return work


def test_graphs_are_captured_after_all_kernels_were_compiled(events: list[str]) -> None:
    with compiled_in_threads(CUDA, 2):
        replays = [capture(lambda name=name: events.append(name), CUDA, None) for name in "ab"]
    assert events == ["launches compile", "a", "b", "launches run", "a", "captured", "b", "captured"]
    replays[0]()
    assert events[-1] == "replayed"


def test_a_graph_that_is_replayed_inside_the_context_is_captured_at_once(events: list[str]) -> None:
    with compiled_in_threads(CUDA, 2):
        capture(lambda: events.append("a"), CUDA, None)()
        assert events == ["a", "captured", "replayed"]
    assert events.count("captured") == 1


def test_captures_outside_take_place_at_once(events: list[str]) -> None:
    capture(lambda: events.append("work"), CUDA, None)
    assert events == ["work", "captured"]


def test_compilations_run_in_threads_and_once_per_key(events: list[str]) -> None:
    ran_in = list[int]()
    with compiled_in_threads(CUDA, 2):
        for key in ("spec", "spec", "other"):
            capture(submitting(key, lambda: ran_in.append(threading.get_ident())), CUDA, None)
    assert len(ran_in) == 2
    assert threading.get_ident() not in ran_in


def test_after_a_failed_compilation_graphs_are_captured_with_a_warning(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no such instruction")

    with caplog.at_level(logging.WARNING), compiled_in_threads(CUDA, 2):
        capture(submitting("spec", fail), CUDA, None)
        capture(lambda: events.append("work"), CUDA, None)
    assert events == ["launches compile", "work", "launches run", "captured", "work", "captured"]
    assert [record.message for record in caplog.records] == [parallel_compile._FAILED]
    assert "no such instruction" in caplog.text


def test_an_error_of_the_work_while_launches_compile_is_left_to_the_capture(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        if active_compilation() is not None:
            raise TypeError("run() got an unexpected argument")

    with caplog.at_level(logging.WARNING), compiled_in_threads(CUDA, 2):
        capture(work, CUDA, None)
    assert events == ["launches compile", "launches run", "captured"]
    assert len(caplog.records) == 1


def test_another_interface_of_triton_is_a_warning(
    events: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mode(executor: Executor) -> None:
        raise ImportError("cannot import name 'AsyncCompileMode'")

    monkeypatch.setattr(parallel_compile, "_launches_compile", mode)
    with caplog.at_level(logging.WARNING), compiled_in_threads(CUDA, 2):
        capture(lambda: None, CUDA, None)
    assert events == ["captured"]
    assert len(caplog.records) == 1


def test_an_error_of_the_device_is_reported_before_the_captures(
    events: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def synchronize(device: torch.device) -> None:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with caplog.at_level(logging.WARNING), compiled_in_threads(CUDA, 2):
        capture(lambda: None, CUDA, None)
    assert "device-side assert triggered" in caplog.text
    assert "set compile_threads to 0" in caplog.text


def test_an_error_in_the_context_ends_it_without_captures(events: list[str]) -> None:
    def prepare() -> None:
        with compiled_in_threads(CUDA, 2):
            capture(lambda: None, CUDA, None)
            raise ValueError("bad shape")

    with pytest.raises(ValueError, match="bad shape"):
        prepare()
    assert parallel_compile.pending_graphs.get() is None
    assert not events


def test_other_threads_launch_and_capture_meanwhile(events: list[str]) -> None:
    """Another engine of the process serves requests while this one starts."""
    found = list[object]()

    def serve() -> None:
        found.append(active_compilation())
        capture(lambda: None, CUDA, None)
        found.append(parallel_compile.pending_graphs.get())

    def work() -> None:
        if active_compilation() is not None:
            other = threading.Thread(target=serve)
            other.start()
            other.join()

    with compiled_in_threads(CUDA, 2):
        capture(work, CUDA, None)
    assert found == [None, None]
    assert events == ["launches compile", "captured", "launches run", "captured"]


@pytest.mark.parametrize(("device", "num_threads"), [(CUDA, 0), (torch.device("cpu"), 2)])
def test_without_threads_or_without_cuda_captures_take_place_at_once(
    events: list[str], device: torch.device, num_threads: int
) -> None:
    with compiled_in_threads(device, num_threads):
        capture(lambda: events.append("work"), CUDA, None)
        assert events == ["work", "captured"]
    assert events == ["work", "captured"]
