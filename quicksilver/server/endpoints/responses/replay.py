"""The events of a stored response. Those of one that this process generates come as they are made; those of one that
another process generates come when it is complete, with whole items instead of deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import Request

from quicksilver.server.endpoints.responses.background import OPEN, LiveEvents, current_reply, live_events
from quicksilver.server.endpoints.responses.turn import RESPONSE
from quicksilver.server.http.body import EventStream, named_event
from quicksilver.server.services import Services, services_of

POLL_S = 0.2
# A cancelled response has no event of its own: its stream ends.
ENDINGS = {"completed": "response.completed", "failed": "response.failed", "incomplete": "response.incomplete"}


class NothingToClose:
    async def aclose(self) -> None:
        """The work continues without a reader."""


def stream_stored(request: Request, owner: str, response_id: str, starting_after: int = -1) -> EventStream:
    services = services_of(request)
    # Taken now: a short response may be complete before the first event is read.
    events = _events(services, owner, response_id, starting_after, live_events(response_id))
    return EventStream(events, NothingToClose(), services.config.keep_alive_comment_s)


async def _events(
    services: Services, owner: str, response_id: str, starting_after: int, live: LiveEvents | None
) -> AsyncGenerator[bytes, None]:
    reply = await _reply(services, owner, response_id)
    if live is not None:
        async for encoded in live.follow(starting_after):
            yield encoded
        return
    opening = {**reply, "status": "in_progress", "output": [], "usage": None}
    created: dict[str, Any] = {"type": "response.created", "response": opening}
    if starting_after < 0:
        yield named_event(created["type"], {**created, "sequence_number": 0})
    while reply["status"] in OPEN:
        await asyncio.sleep(POLL_S)
        reply = await _reply(services, owner, response_id)
    closing = list(_closing_events(reply))
    for number, event in enumerate(closing, start=1):
        # A reader that has received deltas before continues after a higher number; it still gets the last event.
        is_last = number == len(closing)
        if number > starting_after or is_last:
            yield named_event(event["type"], {**event, "sequence_number": max(number, starting_after + 1)})


async def _reply(services: Services, owner: str, response_id: str) -> dict[str, Any]:
    stored = await services.storage.get(owner, RESPONSE, response_id)
    return await current_reply(stored, services, owner)


def _closing_events(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for index, item in enumerate(reply["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if reply["status"] in ENDINGS:
        yield {"type": ENDINGS[reply["status"]], "response": reply}
