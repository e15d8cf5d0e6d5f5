"""Kernels that are compiled in threads before graphs are captured, with a fake Triton and a fake CUDA."""

from __future__ import annotations

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
    """What happened: runs of the work, and captures. A capture runs the work as often as it is told."""
    seen = list[str]()

    def fake(work: Callable[[], None], device: torch.device, pool: object, num_warm_up_runs: int) -> Callable[[], None]:
        for _ in range(num_warm_up_runs):
            work()
        seen.append("captured")
        return lambda: seen.append("replayed")

    @contextmanager
    def mode(executor: Executor) -> Iterator[Callable[[], list[Future[object]]]]:
        seen.append("launches compile")
        yield lambda: []
        seen.append("launches run")

    monkeypatch.setattr(capture_module, "_capture", fake)
    monkeypatch.setattr(parallel_compile, "_triton_mode", lambda: mode)
    return seen


def test_graphs_are_captured_after_all_kernels_were_compiled(events: list[str]) -> None:
    with compiled_in_threads(CUDA):
        replays = [capture(lambda name=name: events.append(name), CUDA, None) for name in "ab"]
    assert events == ["launches compile", "a", "b", "launches run", "a", "captured", "b", "captured"]
    replays[0]()
    assert events[-1] == "replayed"


def test_a_deferred_graph_can_be_replayed_early(events: list[str]) -> None:
    graph = parallel_compile.PendingGraph(lambda: lambda: events.append("replayed"))
    graph()
    graph()
    assert events == ["replayed", "replayed"]
    assert graph.capture() is graph.capture()


def test_captures_outside_take_place_at_once(events: list[str]) -> None:
    capture(lambda: events.append("work"), CUDA, None)
    assert events == ["work", "work", "captured"]


def test_compilations_run_in_threads_and_once_per_key(events: list[str]) -> None:
    ran_in = list[int]()
    with compiled_in_threads(CUDA, num_threads=2):
        compilation = active_compilation()
        assert compilation is not None
        for key in ("spec", "spec", "other"):
            compilation.submit(key, lambda: ran_in.append(threading.get_ident()))
    assert len(ran_in) == 2
    assert threading.get_ident() not in ran_in


def test_a_failed_compilation_is_left_to_the_first_launch(events: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no such instruction")

    with compiled_in_threads(CUDA):
        compilation = active_compilation()
        assert compilation is not None
        compilation.submit("spec", fail)
        capture(lambda: None, CUDA, None)
    assert events[-1] == "captured"


def test_an_error_ends_the_context_without_captures(events: list[str]) -> None:
    def prepare() -> None:
        with compiled_in_threads(CUDA):
            capture(lambda: None, CUDA, None)
            raise ValueError("bad shape")

    with pytest.raises(ValueError, match="bad shape"):
        prepare()
    assert active_compilation() is None
    assert "captured" not in events


def test_without_threads_in_triton_captures_take_place_at_once(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_compile, "_triton_mode", lambda: None)
    with compiled_in_threads(CUDA):
        capture(lambda: events.append("work"), CUDA, None)
        assert events == ["work", "work", "captured"]


def test_without_cuda_nothing_is_deferred(events: list[str]) -> None:
    with compiled_in_threads(torch.device("cpu")):
        assert active_compilation() is None
    assert events == []
