"""A small valid body for every route that reads JSON, which attacks change."""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions"


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "nano", "messages": [{"role": "user", "content": text}], **fields}


def prompt_body(text: str) -> dict[str, Any]:
    return {"model": "nano", "prompt": text, "max_tokens": 1}


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


_OPTIONS = {"stop": ["x"], "metadata": {"a": "b"}}
_CHOICES = [{"value": "billing"}, {"value": "sales", "description": "Orders"}]
_QUESTION = {"type": "choice", "instructions": "Which team?", "choices": _CHOICES}
_BATCH = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}

BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body("hi", max_tokens=1, logit_bias={"1": 1}, tools=[tool({})], **_OPTIONS),
    "/v1/completions": {**prompt_body("x = "), "echo": True, "logprobs": 1},
    "/v1/fim/completions": {**prompt_body("def f("), "suffix": "\n"},
    "/v1/edit/completions": chat_body("hi", max_tokens=1),
    "/v1/apply/completions": chat_body("hi", max_tokens=1),
    "/v1/responses": {"model": "nano", "input": "hi", "max_output_tokens": 16, "metadata": {"a": "b"}},
    "/v1/responses/compact": {"model": "nano", "input": "hi"},
    "/v1/conversations": {"items": [{"type": "message", "role": "user", "content": "hi"}], "metadata": {"a": "b"}},
    "/v1/messages": chat_body("hi", max_tokens=1, system="Be brief.", stop_sequences=["x"]),
    "/v1/messages/count_tokens": chat_body("hi"),
    "/v1/decisions": {"model": "nano", "input": "The order is late.", "questions": [_QUESTION]},
    "/v1/systemone": {"model": "nano", "state": {"a": 1}, "questions": {"q": {"type": "noul", "instructions": "?"}}},
    "/v1/files": {"file": "a", "purpose": "batch"},
    "/v1/batches": {**_BATCH, "metadata": {"a": "b"}},
    "/v1/fine_tuning/jobs": {"model": "nano", "training_file": "file-none", "suffix": "x"},
    "/v1/tokenize": {"model": "nano", "prompt": "hi"},
    "/v1/detokenize": {"model": "nano", "tokens": [1, 2]},
    "/infill": {"model": "nano", "input_prefix": "def f(", "input_suffix": "\n", "n_predict": 1},
    "/api/chat": chat_body("hi", stream=False, options={"num_predict": 1}),
    "/api/generate": {"model": "nano", "prompt": "hi", "stream": False, "options": {"num_predict": 1}},
    "/api/show": {"model": "nano"},
    "/feedback": {"request_id": "cmpl-x", "request_feedback": "accept"},
}
JSON_PATHS = tuple(BODIES)
