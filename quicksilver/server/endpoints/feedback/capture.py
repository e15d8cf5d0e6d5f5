"""CapturedFormat: stores a suggestion beside its reply, so that feedback about it can be joined.

Only suggestions of projects that turned it on are stored; `quicksilver feedback capture` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import Request

from quicksilver.accounts.records import StoredObject, StoredReply
from quicksilver.core import FinishReason
from quicksilver.editing.prompts import EditRequest, rewritten_region
from quicksilver.errors import QuicksilverError
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import Chunk, ReplyFormat, WrappedFormat
from quicksilver.server.http.guard import caller_of
from quicksilver.server.services import services_of
from quicksilver.server.storage import write_json
from quicksilver.text.answer import AnswerPiece, CollectedAnswer
from quicksilver.tuning.feedback import CAPTURE

# An answer -> the line of a KTO job, without its label.
MakeRow = Callable[[str], dict[str, str]]


async def captured_edit(
    request: Request, form: ReplyFormat, plan: ReplyPlan, message: str, edit: EditRequest
) -> ReplyFormat:
    """The same format; it stores the edit if the project captures edits."""
    return await _captured(
        request, form, plan, "edit", lambda answer: {"edit": message, "answer": rewritten_region(edit, answer)}
    )


async def captured_infill(
    request: Request, form: ReplyFormat, plan: ReplyPlan, prefix: str, suffix: str
) -> ReplyFormat:
    """The same format; it stores the infill if the project captures infills."""
    return await _captured(
        request, form, plan, "fim", lambda answer: {"prompt": prefix, "suffix": suffix, "completion": answer}
    )


async def _captured(request: Request, form: ReplyFormat, plan: ReplyPlan, kind: str, make_row: MakeRow) -> ReplyFormat:
    services, owner = services_of(request), caller_of(request).tenant
    if plan.num_answers != 1 or kind not in await services.capture_settings.kinds_of(owner):
        return form
    return CapturedFormat(form, owner, plan.id, make_row)


class CapturedFormat(WrappedFormat):
    """Writes a reply as another format does, and stores its answer. An answer that was cut off is not stored."""

    def __init__(self, form: ReplyFormat, owner: str, reply_id: str, make_row: MakeRow) -> None:
        self._form, self._owner, self._reply_id = form, owner, reply_id
        self._make_row = make_row
        self._answer = CollectedAnswer()
        self.last_bytes, self.stream_type, self.keep_alive = form.last_bytes, form.stream_type, form.keep_alive

    @property
    def form(self) -> ReplyFormat:
        return self._form

    def whole(self, answers: Sequence[CollectedAnswer]) -> Mapping[str, Any]:
        self._answer = answers[0]
        return super().whole(answers)

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[Chunk]:
        self._answer.add(piece)
        return super().chunks(index, piece)

    def stored(self) -> StoredReply | None:
        stored = super().stored()
        if self._answer.finished.reason is FinishReason.LENGTH or not self._answer.content:
            return stored
        row = StoredObject(CAPTURE, self._reply_id, write_json(self._make_row(self._answer.content)))
        return StoredReply(self._owner, (*(stored.objects if stored is not None else ()), row))

    def failure(self, error: QuicksilverError) -> Iterable[Chunk]:
        return self._form.failure(error)

    def encode(self, chunk: Chunk) -> bytes:
        return self._form.encode(chunk)
