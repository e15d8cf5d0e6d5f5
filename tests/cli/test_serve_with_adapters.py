"""`quicksilver serve --adapter NAME=PATH` with nano, two API processes and one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quicksilver.hub.resolve import resolve
from quicksilver.model.files.checkpoint import open_source
from quicksilver.model.files.peft import to_peft
from tests.support.live import serving
from tests.support.row_adapters import random_adapter, saved
from tests.support.weights import nano

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An adapter that changes the text, and one in PEFT's layout that changes nothing."""
    nano()
    config, folder = open_source(resolve("nano").weights).config, tmp_path_factory.mktemp("adapters")
    loud = saved(folder, random_adapter(1, 4, config, std=0.1), "loud")
    (peft := folder / "quiet").mkdir()
    for name, data in to_peft(random_adapter(2, 4, config, std=0.0), config, "nano").items():
        (peft / name).write_bytes(data)
    flags = ("--adapter", f"loud={loud.path}", "--adapter", f"quiet={peft}", "--api-processes", "2")
    with serving(folder / "log", *flags, "--context-len", "2048") as url:
        yield url


def ask(url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 12}
    reply = httpx.post(f"{url}/v1/chat/completions", json={**body, "temperature": 0}, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["message"]["content"])


def test_adapters_answer_beside_their_base(url: str) -> None:
    parents = {entry["id"]: entry.get("parent") for entry in httpx.get(f"{url}/v1/models").json()["data"]}
    assert (parents["nano"], parents["nano:loud"], parents["nano:quiet"]) == (None, "nano", "nano")
    base = ask(url, "nano")
    assert ask(url, "nano:quiet") == base
    assert ask(url, "nano:loud") != base
    assert httpx.get(f"{url}/v1/models/nano:other").status_code == 404


def test_a_server_with_an_adapter_of_another_model_does_not_start(tmp_path: Path) -> None:
    nano()
    ref = saved(tmp_path, random_adapter(1))
    with (
        pytest.raises(AssertionError, match="adapter has 2 layers, the model 30"),
        serving(tmp_path / "log", "--adapter", f"tiny={ref.path}"),
    ):
        pass
