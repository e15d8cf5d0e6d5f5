"""StoredChat: chat completions that were created with `store: true`, with the messages they answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quicksilver.accounts.records import StoredObject
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatCompletion
from quicksilver.server.http.fields import Metadata, Wire, join_text
from quicksilver.server.storage import Storage, write_json

CHAT = "chat"


class ChatUpdateBody(Wire):
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class StoredChat:
    """Where the completion of one body is stored."""

    storage: Storage
    owner: str
    body: ChatBody

    async def save(self, reply: ChatCompletion) -> None:
        messages = [
            {
                **message.model_dump(exclude_none=True),
                "id": f"{reply['id']}-{i}",
                "content": join_text(message.content),
            }
            for i, message in enumerate(self.body.messages)
        ]
        completion: dict[str, Any] = {**reply, "metadata": dict(self.body.metadata or {})}
        stored = write_json({"reply": completion, "messages": messages})
        await self.storage.put(self.owner, StoredObject(CHAT, reply["id"], stored, created_at=reply["created"]))
