"""Responses that are generated after their request was answered.

The stored response is `queued` until the work ends. The process that works on it holds a lease on it: a response whose
lease ran out was interrupted, and is reported as failed. Cancelling and deleting end the lease, and so the work.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Any

from quicksilver.accounts.records import SavedReply, StoredObject
from quicksilver.errors import Conflict, InvalidRequest, QuicksilverError
from quicksilver.server.endpoints.responses.format import ResponsesFormat
from quicksilver.server.endpoints.responses.turn import RESPONSE, ResponseTurn
from quicksilver.server.generation.job import ReplyJob
from quicksilver.server.generation.respond import Chunk
from quicksilver.server.http.errors import internal_error
from quicksilver.server.services import Services
from quicksilver.server.storage import read_json, write_json
from quicksilver.text.answer import Finished

LEASE_S = 10
RENEW_S = 1.0
OPEN = ("queued", "in_progress")

# Strong references: the event loop keeps only weak ones.
_running: set[asyncio.Task[None]] = set()


class LiveEvents:
    """The encoded events of a response that this process generates; the place of an event is its number."""

    def __init__(self) -> None:
        self._encoded: list[bytes] = []
        self._is_ended = False
        self._changed = asyncio.Event()

    def add(self, encoded: Iterable[bytes]) -> None:
        self._encoded += encoded
        self._wake()

    def end(self) -> None:
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, starting_after: int) -> AsyncGenerator[bytes, None]:
        """The events after this number, until the last one."""
        number = starting_after + 1
        while True:
            changed = self._changed
            for encoded in self._encoded[number:]:
                yield encoded
                number += 1
            if self._is_ended and number >= len(self._encoded):
                return
            await changed.wait()


# Events of responses that run in this process, by the id of the response.
_live: dict[str, LiveEvents] = {}


def live_events(response_id: str) -> LiveEvents | None:
    """None for a response that another process generates, or that is complete."""
    return _live.get(response_id)


async def start_background(
    job: ReplyJob, form: ResponsesFormat, turn: ResponseTurn, services: Services
) -> dict[str, Any]:
    """Stores the response as queued and starts the work; what is refused at once is raised."""
    process = uuid.uuid4().hex
    reply: dict[str, Any] = dict(form.response("queued"))
    await job.start()
    until = int(time.time()) + LEASE_S
    try:
        await turn.storage.put(turn.owner, turn.stored(reply, leased_by=process, leased_until=until))
    except BaseException as error:
        job.fail(error)
        await job.aclose()
        raise
    _live[reply["id"]] = LiveEvents()
    task = asyncio.create_task(_work(job, form, turn, services, process, reply))
    _running.add(task)
    task.add_done_callback(_running.discard)
    return reply


async def _work(
    job: ReplyJob,
    form: ResponsesFormat,
    turn: ResponseTurn,
    services: Services,
    process: str,
    queued: dict[str, Any],
) -> None:
    # Counted as an open request, so that a stop waits for it.
    with services.open_requests.counted():
        async with job:
            working = asyncio.create_task(_finish(job, form, turn, process, queued))
            holding = asyncio.create_task(_hold_lease(turn, queued["id"], process))
            try:
                await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    job.fail(asyncio.CancelledError())
            finally:
                for task in (working, holding):
                    task.cancel()
                await asyncio.gather(working, holding, return_exceptions=True)
                _live.pop(queued["id"]).end()


async def _finish(
    job: ReplyJob, form: ResponsesFormat, turn: ResponseTurn, process: str, queued: dict[str, Any]
) -> None:
    live = _live[queued["id"]]
    try:
        closing = await _generate(job, form, live)
        reply: dict[str, Any] = dict(closing[-1]["response"])
        # An equal request with the same Idempotency-Key gets the first reply again, and reads this response.
        await job.settle(SavedReply(200, write_json(queued)), turn.to_store(reply, process))
        live.add(map(form.encode, closing))
    except Conflict:
        # The response was cancelled or deleted.
        return
    except Exception as error:
        job.fail(error)
        refusal = error if isinstance(error, QuicksilverError) else internal_error()
        (failed,) = form.failure(refusal)
        if await _close(turn, dict(failed["response"]), process):
            live.add([form.encode(failed)])


async def _generate(job: ReplyJob, form: ResponsesFormat, live: LiveEvents) -> list[Chunk]:
    """The last events, which are sent when the response is stored and charged; those before them are sent at once."""
    live.add(map(form.encode, form.begin()))
    closing: list[Chunk] = []
    while (numbered := await job.next_piece()) is not None:
        events = list(form.chunks(*numbered))
        if isinstance(numbered[1], Finished):
            closing = list(events)
        else:
            live.add(map(form.encode, events))
    return closing


async def _close(turn: ResponseTurn, reply: dict[str, Any], process: str) -> bool:
    """Whether the response was still open."""
    stored = turn.stored(reply)
    return await turn.storage.run(lambda store: store.finish(turn.owner, stored, process))


async def _hold_lease(turn: ResponseTurn, response_id: str, process: str) -> None:
    """Returns when the response was cancelled or deleted."""
    while True:
        await asyncio.sleep(RENEW_S)
        with suppress(QuicksilverError):
            if not await turn.storage.run(
                lambda store: store.renew(turn.owner, RESPONSE, response_id, process, LEASE_S)
            ):
                return


async def current_reply(stored: StoredObject, services: Services, owner: str) -> dict[str, Any]:
    """The stored response; one whose work was interrupted becomes a failed one."""
    reply: dict[str, Any] = read_json(stored)["reply"]
    if not stored.is_open or stored.leased_until >= time.time():
        return reply
    error = {"code": "server_error", "message": "The server stopped while it worked on this response."}
    return await _end(stored, services, owner, {"status": "failed", "error": error})


async def cancel_response(stored: StoredObject, services: Services, owner: str) -> dict[str, Any]:
    reply: dict[str, Any] = read_json(stored)["reply"]
    if not reply.get("background"):
        raise InvalidRequest("Only a response that was created with background=true can be cancelled.")
    return await _end(stored, services, owner, {"status": "cancelled"}) if stored.is_open else reply


async def _end(stored: StoredObject, services: Services, owner: str, changes: dict[str, Any]) -> dict[str, Any]:
    whole = read_json(stored)
    reply = {**whole["reply"], **changes}
    body = write_json({**whole, "reply": reply})
    ended = StoredObject(stored.kind, stored.id, body, stored.parent, stored.created_at)
    if await services.storage.run(lambda store: store.finish(owner, ended, stored.leased_by)):
        return reply
    return dict(read_json(await services.storage.get(owner, RESPONSE, stored.id))["reply"])
