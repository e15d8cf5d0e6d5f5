"""Mercury's own client: host-only base URL, `/v1` in its paths."""

from __future__ import annotations

import pytest
from conftest import ANSWER, QUESTION
from inceptionai import APIStatusError, Inception


@pytest.fixture
def client(url: str) -> Inception:
    return Inception(base_url=url, api_key="none", max_retries=0)


def ask(text: str = QUESTION) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(client: Inception) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=ask())
    assert reply.choices[0].message.content == ANSWER
    assert reply.usage.cached_input_tokens == 0


def test_stream(client: Inception) -> None:
    chunks = client.chat.completions.create(model="mercury-2", messages=ask(), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER


def test_models(client: Inception) -> None:
    assert "mercury-2" in [model.id for model in client.models.list().data]
    assert "mercury-edit-2" in [model.id for model in client.models.list_fim().data]


def test_refusal(client: Inception) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.chat.completions.create(model="jupyter-2", messages=ask())
    assert caught.value.status_code == 404
