"""`benchmarks.peer_vllm`: the same requests for every server, parsed answers, and the ratios of the report."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load_clients import Answer
from benchmarks.peer_clients import Load, body_of, kind_of, parse, summary
from benchmarks.peer_report import report_of
from benchmarks.peer_servers import Command, running
from benchmarks.peer_vllm import plan, warm_up
from tools.peer_tables import load_table

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SERVER = """
import http.server, json, sys
states = ["loading", "loading", "ready"]
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/v1/models":
            open(sys.argv[2], "a").write(states[0])
            self.wfile.write(json.dumps({"data": [{"id": "m"}, {"quicksilver": {"state": states.pop(0)}}]}).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def event(text: str = "", usage: dict[str, int] | None = None, finish: str | None = None) -> bytes:
    choices = [] if usage else [{"delta": {"content": text}, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer(pieces: list[tuple[float, bytes]]) -> Answer:
    return Answer(10.0, pieces)


def whole_answer() -> Answer:
    """An empty first event, two with text of which the second is received in two pieces, and the usage."""
    second = chunk(event(" world", finish="stop"))
    end = chunk(event(usage={"completion_tokens": 5, "prompt_tokens": 7}) + b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return answer([
        (10.1, HEAD + chunk(event(""))), (10.2, chunk(event("Hello"))),
        (10.3, second[:20]), (10.4, second[20:]), (10.5, end),
    ])  # fmt: skip


def test_an_event_counts_when_its_last_byte_is_received() -> None:
    reply = parse(3, whole_answer())
    assert (reply.error, reply.text, reply.tokens, reply.finish) == ("", "Hello world", 5, "stop")
    assert reply.times == [10.2, 10.4]


@pytest.mark.parametrize(
    "pieces", [[], [(10.1, b"HTTP/1.1 503 Busy\r\n\r\nbusy")], [(10.1, HEAD + chunk(event("Hello")))]]
)
def test_answers_that_are_not_complete_are_errors(pieces: list[tuple[float, bytes]]) -> None:
    reply = parse(0, answer(pieces))
    assert reply.error
    row = summary(Load("mixed", 1, 1, 0), [reply])
    assert (row["requests"], row["failed"]) == (1, 1)


def test_rates_are_from_the_first_request_to_the_last_text() -> None:
    row = summary(Load("mixed", 1, 1, 0), [parse(0, whole_answer())])
    assert row["tokens_per_s"] == pytest.approx(5 / 0.4, abs=0.1)
    assert row["ttft_ms"] == [200.0, 200.0]
    assert row["tokens_per_chunk"] == 2.5


def test_one_request_at_a_time_asks_all_prompts_once_over_two_runs() -> None:
    alone = [load for load in plan([1, 8], 2, 1.0) if load.kind == "mixed" and load.streams == 1]
    texts = [
        json.loads(body_of(load, "m", number))["messages"][1]["content"].split("] ", 1)[1]
        for load in alone
        for number in range(load.requests)
    ]
    assert len(texts) == 96
    # 12 chat questions are asked twice.
    assert len(set(texts)) >= 80
    assert {kind_of(load, number) for load in alone for number in range(4)} == {"code", "chat", "json", "edit"}


def test_no_ticket_is_used_twice() -> None:
    loads = [*warm_up(1.0), *plan([1, 8, 32, 64, 128, 256], 2, 1.0)]
    tickets = [load.first + number for load in loads for number in range(load.requests)]
    assert len(tickets) == len(set(tickets))


def start_of(server: str, rate: float) -> dict[str, Any]:
    row = summary(Load("mixed", 8, 1, 0), [parse(0, whole_answer())]) | {"tokens_per_s": rate, "client_core_share": 0.1}
    facts = {"hardware": "x", "driver": "1", "python": "3", "commit": "c", "model": "m", "client_processes": 8}
    times = {"date": "2026-11-18", "version": "0.25.1", "start_s": 1.0, "gpu_memory_mib": 1, "command": server}
    return {"server": server, **facts, **times, "rows": [row, row], "answers": {"0": server[:1], "1": "same"}}


def test_the_report_has_ratios_to_the_default_and_to_the_better_peer() -> None:
    report = report_of([start_of("quicksilver", 300.0), start_of("vllm", 150.0), start_of("vllm-api4", 600.0)])
    (row,) = report["load"]
    assert (row["requests"], row["tok_per_s"], row["ratio"], row["ratio_to_better"]) == (8, 300, 2.0, 0.5)
    assert report["equal_answers"] == {"compared": 2, "equal": 1}
    assert "| 8 | 300 | 150 | 600 | 2.00 |" in load_table(report)


def test_vllm_with_several_api_processes_is_the_peer_where_its_default_was_not_run() -> None:
    report = report_of([start_of("quicksilver", 300.0), start_of("vllm-api4", 200.0)])
    (row,) = report["load"]
    assert (row["peer_tok_per_s"], row["ratio"], row["ratio_to_better"]) == (200, 1.5, 1.5)
    assert "| vLLM 0.25.1, 4 API processes, tokens/s |" in load_table(report)


def test_a_server_is_measured_when_all_its_models_are_loaded_and_stopped_afterwards(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = Command("x", f"{sys.executable} {tmp_path / 'server.py'} {{port}} {tmp_path / 'states'}", "/ready", {})
    with running(command, tmp_path / "log", 60) as (port, facts):
        assert (tmp_path / "states").read_text() == "loadingloadingready"
        assert 0 <= facts["start_s"] <= facts["loaded_s"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)


def test_a_server_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    command = Command("x", f"{sys.executable} -c \"raise SystemExit('no weights')\"", "/ready", {})
    with pytest.raises(SystemExit, match="no weights"), running(command, tmp_path / "log", 60):
        pass
