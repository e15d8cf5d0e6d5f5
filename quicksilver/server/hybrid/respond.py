"""respond_auto: the reply to a chat body whose model is `auto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.respond import Chunk, ReplyFormat, WrappedFormat, respond_with
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.request_record import record_of
from quicksilver.server.hybrid.job import HybridJob
from quicksilver.server.hybrid.legs import LegOpener, legs_reply
from quicksilver.server.hybrid.policy import Profile
from quicksilver.server.hybrid.rules import choose_route, facts_of
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.services import Services
from quicksilver.text.answer import CollectedAnswer, Finished


async def respond_auto(
    request: Request, body: ChatBody, services: Services, hybrid: Hybrid, profile: Profile
) -> Response:
    opener = LegOpener(request, body, services, hybrid)
    facts = facts_of(body, profile, caller_of(request).tenant)
    route = choose_route(hybrid.policy, facts, services.model_names.default, may_leave=await opener.may_leave())
    job = HybridJob(opener, route, is_streamed=bool(body.stream))
    try:
        return await respond_with(request, body, job, HybridFormat(job))
    finally:
        record_of(request).reply_id = job.plan.id


class HybridFormat(WrappedFormat):
    """The format of the leg that delivers the reply, with `usage.quicksilver.legs`."""

    def __init__(self, job: HybridJob) -> None:
        self._job = job

    @property
    def form(self) -> ReplyFormat:
        assert self._job.leg is not None
        return self._job.leg.form

    def whole(self, answers: Sequence[CollectedAnswer]) -> Mapping[str, Any]:
        return self._with_legs(super().whole(answers))

    def end(self, finished: Sequence[Finished]) -> Iterable[Chunk]:
        return [self._with_legs(chunk) for chunk in super().end(finished)]

    def _with_legs(self, reply: Chunk) -> Chunk:
        usage = reply.get("usage")
        if not usage:
            return reply
        work = {**usage["quicksilver"], "legs": legs_reply(self._job.reported())}
        return {**reply, "usage": {**usage, "quicksilver": work}}
