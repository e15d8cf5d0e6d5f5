"""`benchmarks/load.py`: scheduled arrivals of an open loop, summaries, and phases that two processes share."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import load_clients
from benchmarks.load_clients import Answer, Arrivals, Level, arrival_times, run_level, summary, summary_of
from benchmarks.load_socket import per_token
from benchmarks.phase_clock import PhaseClock, SharedSeconds

REPLY = (
    b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    b'data: {"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


def level(num_requests: int, rate: float, streams: int = 1) -> Level:
    return Level("127.0.0.1", 1, "", [b""] * num_requests, streams, rate, seed=7)


async def test_open_loop_counts_from_the_scheduled_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(level: Level, body: bytes, arrival: float | None = None) -> Answer:
        assert arrival is not None
        await asyncio.sleep(0.02)
        return Answer(arrival)

    monkeypatch.setattr(load_clients, "ask", slow)
    rate = 1000.0
    answers = await run_level(level(5, rate))
    gaps = [b.start - a.start for a, b in pairwise(answers)]
    rng = random.Random(7)
    assert gaps == pytest.approx([rng.expovariate(rate) for _ in range(4)])


async def test_closed_loop_counts_from_the_moment_of_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(host: str, port: int) -> None:
        nonlocal num_open
        num_open += 1
        assert num_open <= 2
        await asyncio.sleep(0)
        num_open -= 1
        raise OSError

    num_open = 0
    monkeypatch.setattr(asyncio, "open_connection", refused)
    answers = await run_level(level(4, 0.0, streams=2))
    assert answers[2].start > answers[0].start


def test_closed_loop_has_no_schedule() -> None:
    assert arrival_times(0.0, 3, seed=0) == [None] * 3


def test_schedule_has_a_time_for_every_request() -> None:
    times = arrival_times(5.0, 4, seed=0)
    assert len(times) == 4
    assert times == sorted(times, key=float)


def test_summary_counts_waits_gaps_and_failures() -> None:
    whole = (10.0, [(10.5, REPLY)])
    cut_off = (10.0, [(10.5, REPLY[:-20])])
    row = summary(2, [whole, cut_off])
    assert (row["requests"], row["failed"], row["tokens"], row["ttft_ms"][0]) == (1, 1, 3, 500.0)
    row = summary_of(1, [Arrivals(1.0, [1.1, 1.3], 8)])
    assert (row["gap_ms"][0], row["tokens_per_s"], row["tokens_per_chunk"]) == (200.0, 27, 4.0)


def test_nested_phases_are_counted_once() -> None:
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = PhaseClock(now=lambda: now)
    inner = clock.timed("inner", lambda: advance(2.0))

    def both() -> None:
        advance(1.0)
        inner()

    clock.timed("outer", both)()
    assert dict(clock.seconds) == {"outer": 1.0, "inner": 2.0}


def test_shared_seconds_are_read_through_the_file(tmp_path: Path) -> None:
    reader, writer = SharedSeconds(tmp_path / "phases"), SharedSeconds(tmp_path / "phases")
    writer["emit"] += 1.5
    assert (reader["emit"], reader["socket"]) == (1.5, 0.0)


def test_http_is_what_the_other_phases_leave() -> None:
    names = ("worker.emit", "worker.cpu", "api.socket", "api.detokenise", "api.cpu")
    after = dict(zip(names, (0.1, 2.0, 0.2, 0.3, 1.0), strict=True))
    row = per_token(dict.fromkeys(names, 0.0), after, 1_000_000)
    assert row["api_us_per_token"] == {"socket": 0.2, "detokenise": 0.3, "cpu": 1.0, "http": 0.5}
    assert row["worker_us_per_token"] == {"emit": 0.1, "cpu": 2.0}
