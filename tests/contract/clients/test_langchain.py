"""LangChain: its own standard tests for chat models, through ChatOpenAI."""

from __future__ import annotations

import os

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChatOpenAI(ChatModelIntegrationTests):
    """Text in, text out: the multimodal parts of the suite do not apply."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {
            "model": "mercury-2",
            "base_url": os.environ["QUICKSILVER_URL"] + "/v1",
            "api_key": "none",
            "max_retries": 0,
            "stream_usage": True,
        }

    @property
    def model_override_value(self) -> str:
        return "mercury"

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True
