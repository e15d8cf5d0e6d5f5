"""AsyncLLM gives the answers of LLM."""

from __future__ import annotations

import asyncio
import json

import pytest

from quicksilver.errors import EngineUnavailable, InvalidRequest
from quicksilver.llm import LLM, AsyncLLM
from tests.llm.conftest import tiny_parts
from tests.support.tiny import decode_params

SHORT = decode_params("verify", canvas_len=4, max_new_tokens=12)


@pytest.fixture
def async_llm(monkeypatch: pytest.MonkeyPatch) -> AsyncLLM:
    monkeypatch.setattr("quicksilver.llm.async_llm.load_parts", tiny_parts)
    return AsyncLLM("tiny", system_prompt="")


async def test_answers_equal_those_of_llm(async_llm: AsyncLLM, tiny_llm: LLM) -> None:
    async with async_llm as llm:
        prompts = ["alpha", "beta"]
        assert [a.text for a in await llm.generate(prompts, SHORT)] == [
            a.text for a in tiny_llm.generate(prompts, SHORT)
        ]
        chats = await asyncio.gather(llm.chat("Hi", SHORT), llm.chat([{"role": "user", "content": "Hi"}], SHORT))
        assert {answer.text for answer in chats} == {tiny_llm.chat("Hi", SHORT).text}
        pieces = [piece async for piece in llm.stream("Hi", SHORT)]
        assert "".join(piece.text for piece in pieces) == chats[0].text


async def test_constraints_and_choice(async_llm: AsyncLLM) -> None:
    async with async_llm as llm:
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        answer = await llm.chat("x", decode_params("verify", canvas_len=4, max_new_tokens=100), schema=schema)
        assert isinstance(json.loads(answer.text)["a"], bool)
        assert (await llm.generate("x", choice=["red", "blue"])).text in ("red", "blue")


async def test_errors_reach_the_caller_and_closing_ends_the_engine(async_llm: AsyncLLM) -> None:
    async with async_llm as llm:
        with pytest.raises(InvalidRequest, match="temperature"):
            await llm.generate("x", decode_params("ar", canvas_len=1, temperature=-1.0))
    with pytest.raises(EngineUnavailable):
        await llm.generate("x", SHORT)
