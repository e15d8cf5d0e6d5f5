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


def decisions(text: str, **question: Any) -> dict[str, Any]:
    questions = [{"type": "predicate", "instructions": "Is it true?", **question}]
    return {"model": "nano", "input": text, "questions": questions}


def bodies(text: str) -> dict[str, dict[str, Any]]:
    message = [{"role": "user", "content": text}]
    return {
        "/v1/tokenize": {"model": "nano", "prompt": text},
        "/v1/chat/completions": chat(text),
        "/v1/completions": {"model": "nano", "prompt": text},
        "/v1/responses": {"model": "nano", "input": text},
        "/v1/edit/completions": {"model": "nano", "messages": [{**message[0], "content": EDIT.format(text)}]},
        "/v1/apply/completions": {"model": "nano", "messages": message},
        "/v1/decisions": decisions(text),
        "/v1/systemone": {"model": "nano", "state": text, "questions": {"a": {"type": "noul", "instructions": "b"}}},
        "/v1/messages": {"model": "nano", "max_tokens": 8, "messages": message},
        "/api/chat": {"model": "nano", "messages": message},
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
    # The envelopes of Anthropic and Ollama have no code.
    if path not in ("/v1/messages", "/api/chat"):
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "characters; at most" in response.text
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


def code_bodies(text: str) -> dict[str, dict[str, Any]]:
    """Bodies of code completion, whose text is cut to the context and not refused."""
    return {
        "/v1/fim/completions": {"model": "nano", "prompt": text, "suffix": text[:100_000], "max_tokens": 8},
        "/infill": {"model": "nano", "input_prefix": text, "input_suffix": text[:100_000], "n_predict": 8},
    }


@pytest.mark.parametrize("path", list(code_bodies("")))
async def test_code_beyond_any_context_is_cut_before_it_is_encoded(served: Served, path: str) -> None:
    assert (await served.post(path, code_bodies(LONGEST)[path])).status_code == 200


OPTIONS = [{"value": f"{i}" + "a" * 1000} for i in range(250)]
LONG_QUESTIONS = {
    "/v1/decisions": [{"type": "choice", "instructions": "Which?", "choices": OPTIONS}] * 16,
    "/v1/systemone": {
        f"{i}": {"type": "choice", "criteria": {option["value"]: None for option in OPTIONS}} for i in range(16)
    },
}


@pytest.mark.parametrize("path", list(LONG_QUESTIONS))
async def test_questions_beyond_any_context_are_refused_unread(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    monkeypatch.setattr(
        type(served.services.tokenizer), "encode", lambda self, text: (encoded.append(len(text)), [1])[1]
    )
    text = {"input": "a"} if path == "/v1/decisions" else {"state": "a"}
    response = await served.post(path, {"model": "nano", **text, "questions": LONG_QUESTIONS[path]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert encoded == []


async def test_a_label_of_megabytes_is_refused(served: Served) -> None:
    choices = [{"value": "a"}, {"value": HUGE}]
    response = await served.post("/v1/decisions", decisions("a", type="choice", choices=choices))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "questions.0.choices.1.value")
    named = {"q": {"type": "choice", "criteria": {"a": None, HUGE: None}}}
    response = await served.post("/v1/systemone", {"model": "nano", "state": "a", "questions": named})
    assert response.status_code == 400
    assert len(response.content) < 10_000


async def test_only_the_start_of_a_label_is_encoded_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = served.services.tokenizer
    encoded: list[str] = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: (encoded.append(text), encode(self, text))[1])
    choices = [{"value": "a" * 1000}, {"value": "b" * 1000}]
    await served.post("/v1/decisions", decisions("x", type="choice", choices=choices))
    assert max(len(text) for text in encoded if "Question" not in text and "Options" not in text) <= 66


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
            is_last = False
            while not is_last:
                is_last = self._is_over.is_set()
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


@pytest.mark.parametrize("text", [HUGE, LONGEST[:-1000]], ids=["refused", "encoded"])
@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/chat/completions", "/v1/fim/completions", "/v1/decisions"])
def test_health_is_answered_while_long_prompts_arrive(server: LiveProcess, path: str, text: str) -> None:
    known = {**bodies(text), **code_bodies(text)}
    body = known[path]
    raw = json.dumps(body).encode()
    with HealthWatch(server.url) as watch, ThreadPoolExecutor(NUM_SENDERS) as senders:
        statuses = set(senders.map(lambda _: post(server, path, raw), range(2 * NUM_SENDERS)))
    assert statuses <= {200, 400}, statuses
    p99 = statistics.quantiles(watch.seconds, n=100)[98] if len(watch.seconds) > 1 else watch.seconds[0]
    print(f"{path}: {len(watch.seconds)} probes, p99 {p99 * 1e3:.0f} ms, longest {max(watch.seconds) * 1e3:.0f} ms")
    assert max(watch.seconds) < LONGEST_WAIT_S
