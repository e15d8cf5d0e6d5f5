"""A live server with a scripted engine and the objects that the tests name.

The tests were written for a mock that knows every id. Here an object must exist, so each id of theirs is stored before.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.accounts.records import StoredObject
from quicksilver.server.config import CHAT_ALIASES, CODE_ALIASES
from quicksilver.server.endpoints.batches.route import new_batch
from quicksilver.server.endpoints.batches.wire import BatchBody
from quicksilver.server.endpoints.files.store import describe
from quicksilver.server.storage import Storage, write_json
from quicksilver.tuning.models import MODEL, TunedModel
from tests.contract.live import LiveServer

# Names of models in the tests; a server maps them with --served-name.
MODELS = ("gpt-5.6", "gpt-6-astra", "gpt-3.5-turbo-instruct", "model", "string")


def seeds() -> list[StoredObject]:
    return [*responses(), *conversations(), *chats(), *files(), *batches(), tuned_model()]


def tuned_model() -> StoredObject:
    model = TunedModel("ft:gpt-4o-mini:acemeco:suffix:abc123", "nano", "", 0, 1, "ftjob-1", 1)
    return StoredObject(MODEL, model.id, write_json(asdict(model)))


def responses() -> list[StoredObject]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Paris", "annotations": [], "logprobs": []}],
    }
    question = {"id": "after", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}
    fields: dict[str, Any] = {
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "background": True,
        "model": "nano",
        "output": [message],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
    }
    ids = ("resp_677efb5139a88190b512bc3fef8e535d", "resp_123", "response_id", "previous_response_id")
    return [
        StoredObject("response", each, write_json({"reply": {**fields, "id": each}, "input": [question]}))
        for each in ids
    ]


def conversations() -> list[StoredObject]:
    made = [
        StoredObject(
            "conversation",
            each,
            write_json({"id": each, "object": "conversation", "created_at": 1, "metadata": {}}),
        )
        for each in ("conv_123", "string")
    ]
    item = {"type": "message", "role": "user", "status": "completed", "content": [{"type": "input_text", "text": "Hi"}]}
    items = [StoredObject("item", each, write_json({**item, "id": each}), "conv_123") for each in ("msg_abc", "after")]
    return [*made, *items]


def chats() -> list[StoredObject]:
    message = {"role": "assistant", "content": "Paris", "refusal": None}
    reply = {
        "object": "chat.completion",
        "created": 1,
        "model": "nano",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "metadata": {"foo": "string"},
    }
    # The library's type of a stored message admits this role only.
    question = {**message, "id": "after"}
    return [
        StoredObject("chat", each, write_json({"reply": {**reply, "id": each}, "messages": [question]}))
        for each in ("completion_id", "after")
    ]


def files() -> list[StoredObject]:
    made: list[StoredObject] = []
    for each in ("file_id", "input_file_id", "after"):
        reply = {**describe("in.jsonl", "batch", 3), "id": each}
        made += [StoredObject("file", each, write_json(reply)), StoredObject("piece", f"{each}/0", b"{}\n", each)]
    return made


def batches() -> list[StoredObject]:
    body = BatchBody(input_file_id="input_file_id", endpoint="/v1/chat/completions", completion_window="24h")
    ended = {**new_batch(body), "status": "completed"}
    return [
        StoredObject("batch", each, write_json({"reply": {**ended, "id": each}, "key_id": None}))
        for each in ("batch_id", "after")
    ]


class Seeding:
    """ASGI layer that puts the objects back before each request, since the tests delete them."""

    def __init__(self, app: ASGIApp, storage: Storage) -> None:
        self._app = app
        self._storage = storage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._storage.run(lambda store: [store.add("", each) for each in seeds()])
        await self._app(scope, receive, send)


def main(home: Path) -> None:
    settings = {
        "chat_aliases": (*CHAT_ALIASES, *MODELS),
        "code_aliases": (*CODE_ALIASES, *MODELS),
        "stored_days": 40_000,
    }
    server = LiveServer(home, **settings)
    app: Any = server.listener.config.app
    server.listener.config.app = Seeding(app, app.state.services.storage)
    server.start()
    print(server.url, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
