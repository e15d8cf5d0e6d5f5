"""StoredChat: chat completions that were created with `store: true`, with the messages they answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quicksilver.accounts.records import StoredObject, StoredReply
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatCompletion
from quicksilver.server.http.fields import Metadata, Wire, join_text
from quicksilver.server.storage import write_json

CHAT = "chat"


class ChatUpdateBody(Wire):
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class StoredChat:
    """The project that stores the completion of one body."""

    owner: str
    body: ChatBody

    def with_reply(self, reply: ChatCompletion) -> StoredReply:
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
        return StoredReply(self.owner, (StoredObject(CHAT, reply["id"], stored, created_at=reply["created"]),))
