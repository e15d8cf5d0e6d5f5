"""LangChain: its own standard tests for chat models through ChatOpenAI, and what they leave out."""

from __future__ import annotations

import os
from typing import Any

import openai
import pytest
from conftest import Server
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from questions import LIMIT, QUESTION, STORY, STORY_TOKENS

LONG_PROMPT = "Answer with one word. " * 20 + QUESTION


def params(**changes: object) -> dict[str, Any]:
    address = {"base_url": os.environ["QUICKSILVER_URL"] + "/v1", "api_key": "none", "max_retries": 0}
    return {"model": "mercury-2", **address, "temperature": 0, "max_tokens": LIMIT, "stream_usage": True, **changes}


class TestChatOpenAI(ChatModelIntegrationTests):
    """Text in, text out: images, PDF and audio do not apply, nor does the timing of recorded replies."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return params()

    @property
    def model_override_value(self) -> str:
        return "mercury"

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        details = ["reasoning_output", "cache_read_input"]
        return {"invoke": details, "stream": details}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return ask(ChatOpenAI(**params(reasoning_effort="low")), QUESTION, stream)

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        ask(ChatOpenAI(**params()), LONG_PROMPT, stream)
        return ask(ChatOpenAI(**params()), LONG_PROMPT, stream)


def ask(model: ChatOpenAI, text: str, stream: bool) -> AIMessage:
    if not stream:
        return model.invoke(text)
    first, *rest = model.stream(text)
    return sum(rest, first)


def test_refusal(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ChatOpenAI(**params(temperature=9)).invoke(QUESTION)
    assert refused.value.param == "temperature"


def test_abort(server: Server) -> None:
    with server.expecting_an_abort():
        stream = ChatOpenAI(**params(max_tokens=STORY_TOKENS, temperature=0)).stream(STORY)
        next(stream)
        stream.close()


def test_responses(server: Server) -> None:
    reply = ChatOpenAI(**params(use_responses_api=True, output_version="responses/v1")).invoke(QUESTION)
    assert reply.text
    assert reply.usage_metadata["output_tokens"] > 0
