"""`/v1/responses/compact`: a conversation -> the messages of its user and a summary, as items that can be sent back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.responses.format import response_usage
from quicksilver.server.endpoints.responses.plan import read_turns, write_summary
from quicksilver.server.endpoints.responses.turn import ResponseTurn
from quicksilver.server.endpoints.responses.wire import CompactBody, CompactionReply
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import Chunk, ReplyFormat
from quicksilver.server.http.body import validate
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer

REQUEST = (
    "Summarise this conversation for another assistant that will continue it. State the task, the decisions, the files "
    "and values that matter, and what is left to do. Write the summary only."
)
MAX_SUMMARY_TOKENS = 2048


async def plan_compaction(body: CompactBody, turn: ResponseTurn, services: Services, tenant: str) -> ReplyPlan:
    messages = [*read_turns(body, turn.checked_history), {"role": "user", "content": REQUEST}]
    fields = {"model": body.model, "messages": messages, "max_tokens": MAX_SUMMARY_TOKENS, "reasoning_effort": "none"}
    chat = validate(ChatBody, fields)
    plan = await plan_chat(chat, services, tenant)
    return replace(plan, id=f"resp_{uuid.uuid4().hex}")


class CompactFormat(ReplyFormat):
    def __init__(self, plan: ReplyPlan, turn: ResponseTurn) -> None:
        self._plan = plan
        self._turn = turn

    def whole(self, answers: Sequence[CollectedAnswer]) -> CompactionReply:
        (answer,) = answers
        summary = {
            "type": "compaction",
            "id": f"cmp_{uuid.uuid4().hex}",
            "encrypted_content": write_summary(answer.content),
        }
        return {
            "id": self._plan.id,
            "object": "response.compaction",
            "created_at": self._plan.created,
            "output": [*self._user_messages(), summary],
            "usage": response_usage(answer.finished),
        }

    def chunks(self, index: int, piece: AnswerPiece) -> Sequence[Chunk]:
        """A compaction is not streamed."""
        return ()

    def _user_messages(self) -> list[dict[str, Any]]:
        items = [*self._turn.history, *self._turn.items]
        return [item for item in items if item["type"] == "message" and item.get("role") == "user"]
