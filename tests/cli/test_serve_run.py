"""`quicksilver serve` with several real models: names, unloading and loading on demand."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.live import serving

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """nano and its parent, which has the same weights without nano's skill."""
    flags = ("--model", "smollm2-135m", "--served-name", "gpt-4o=nano", "--pin", "nano", "--idle-unload-s", "3")
    with serving(tmp_path_factory.mktemp("server") / "log", *flags, "--context-len", "2048") as url:
        yield url


def ask(url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 12}
    reply = httpx.post(f"{url}/v1/chat/completions", json={**body, "temperature": 0}, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["message"]["content"])


def states(url: str) -> dict[str, str]:
    entries = httpx.get(f"{url}/v1/models").json()["data"]
    return {entry["id"]: entry["quicksilver"]["state"] for entry in entries}


def test_two_models_answer_and_an_idle_one_is_unloaded_and_loaded_again(url: str) -> None:
    answers = {name: ask(url, name) for name in ("nano", "gpt-4o", "smollm2-135m")}
    assert answers["gpt-4o"] == answers["nano"]
    assert answers["smollm2-135m"]
    deadline = time.monotonic() + 60
    while states(url)["smollm2-135m"] != "unloaded":
        assert time.monotonic() < deadline, states(url)
        time.sleep(0.2)
    assert states(url)["nano"] == states(url)["gpt-4o"] == "ready", "a pinned model stays"
    assert ask(url, "smollm2-135m") == answers["smollm2-135m"]
    assert ask(url, "nano") == answers["nano"]
