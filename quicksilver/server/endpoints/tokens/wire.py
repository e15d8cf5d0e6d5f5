"""Bodies and replies of `/v1/tokenize`, `/v1/detokenize` and `/v1/tokenizer_info`."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from quicksilver.server.endpoints.chat.wire import ChatMessage
from quicksilver.server.endpoints.completions.wire import TokenIds
from quicksilver.server.http.fields import MAX_MESSAGES, MAX_TOOLS, Effort, ModelBody, ToolSpec


class TokenizeBody(ModelBody):
    """Either `prompt`, encoded as plain text, or `messages`, rendered by the chat template."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
            ]
        }
    )

    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    # vLLM: no tokenizer here adds special tokens to plain text, so both values have the same effect.
    add_special_tokens: bool | None = None
    # vLLM: the reply also has the text of each token.
    return_token_strs: bool | None = None


class TokenizeReply(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: NotRequired[list[str]]


class TokenizerInfo(TypedDict):
    """vLLM's description of a tokenizer. The chat template is null if the server has one of its own."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    model_max_length: int
    vocab_size: int


class DetokenizeBody(ModelBody):
    tokens: TokenIds


class DetokenizeReply(TypedDict):
    prompt: str
