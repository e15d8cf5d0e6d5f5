"""Texts of megabytes: refused by length before they are encoded, and no other request waits for them."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from quicksilver.server.encoding.prompt_encoder import CHARS_PER_TOKEN
from tests.server.conftest import Served, chat
from tests.support.bank import Bank
from tests.support.fake_engine import INFO
from tests.support.live_process import LiveProcess, live_process

HUGE = "a" * 8_000_000
# The longest text that is still encoded.
LONGEST = "a" * (CHARS_PER_TOKEN * INFO.context_len)
EDIT = "<|current_file_content|>\n<|code_to_edit|>\n{}\n<|/code_to_edit|>\n<|/current_file_content|>"
NUM_SENDERS = 8
# A guard against a stopped server, not a measure of its speed.
LONGEST_WAIT_S = 2.0


def bodies(text: str) -> dict[str, dict[str, Any]]:
    message = [{"role": "user", "content": text}]
    return {
        "/v1/tokenize": {"model": "nano", "prompt": text},
        "/v1/chat/completions": chat(text),
        "/v1/completions": {"model": "nano", "prompt": text},
        "/v1/responses": {"model": "nano", "input": text},
        "/v1/edit/completions": {"model": "nano", "messages": [{**message[0], "content": EDIT.format(text)}]},
        "/v1/apply/completions": {"model": "nano", "messages": message},
    }


@pytest.mark.parametrize("path", list(bodies("")))
async def test_text_beyond_any_context_is_refused_unread(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = served.services.tokenizer
    encoded: list[int] = []
    encode = tokenizer.encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: (encoded.append(len(text)), encode(text))[1])
    response = await served.post(path, bodies("a" * (len(LONGEST) + 1))[path])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert max(encoded, default=0) < 1000
    assert served.engine.seen == []


async def test_a_long_body_without_credit_is_refused_before_it_is_read(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await bank.key(credits=0)
    encoded: list[int] = []
    tokenizer = type(bank.served.services.tokenizer)
    monkeypatch.setattr(tokenizer, "encode", lambda self, text: encoded.append(len(text)) or [])
    response = await bank.served.post("/v1/chat/completions", chat("a" * 40_000), key)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert encoded == []
    assert await bank.spent() == 0


async def test_code_beyond_any_context_is_cut_before_it_is_encoded(served: Served) -> None:
    body = {"model": "nano", "prompt": LONGEST, "suffix": LONGEST, "max_tokens": 8}
    assert (await served.post("/v1/fim/completions", body)).status_code == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProcess]:
    with live_process(Path(tmp_path_factory.mktemp("home"))) as running:
        yield running


class HealthWatch:
    """Asks for /health over one connection all the time; the seconds that each reply took."""

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._is_over.is_set():
                started = time.perf_counter()
                assert client.get("/health").status_code == 200
                self.seconds.append(time.perf_counter() - started)
                time.sleep(0.005)


def post(server: LiveProcess, path: str, raw: bytes) -> int:
    """Sends the body in one call, which leaves the lock of this process to the watch."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, body=raw, headers={"host": "localhost"})
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


@pytest.mark.parametrize("text", [HUGE, LONGEST], ids=["refused", "encoded"])
@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/chat/completions", "/v1/fim/completions"])
def test_health_is_answered_while_long_prompts_arrive(server: LiveProcess, path: str, text: str) -> None:
    known = bodies(text)
    body = known[path] if path in known else {"model": "nano", "prompt": text, "suffix": text[:1000]}
    raw = json.dumps(body).encode()
    with HealthWatch(server.url) as watch, ThreadPoolExecutor(NUM_SENDERS) as senders:
        statuses = set(senders.map(lambda _: post(server, path, raw), range(2 * NUM_SENDERS)))
    assert statuses <= {200, 400}, statuses
    p99 = statistics.quantiles(watch.seconds, n=100)[98] if len(watch.seconds) > 1 else watch.seconds[0]
    print(f"{path}: {len(watch.seconds)} probes, p99 {p99 * 1e3:.0f} ms, longest {max(watch.seconds) * 1e3:.0f} ms")
    assert max(watch.seconds) < LONGEST_WAIT_S
