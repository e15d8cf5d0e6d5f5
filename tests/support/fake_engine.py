"""`FakeEngine`: an `EngineClient` whose events are scripted.

It keeps the guarantees of the engine: deltas arrive in order and are never lost, a slow reader gets only the newest
frame, and closing the iterator aborts the request. It counts open requests, so tests can check that all are released.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from quicksilver.core import (
    DecoderName,
    Delta,
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    FinishReason,
    Frame,
    Request,
    ScoreRequest,
    Scores,
    TokenLogprob,
    Usage,
)
from quicksilver.errors import EngineUnavailable

# An event to send, an error to raise, or an awaitable to wait for.
Step = Event | BaseException | Callable[[], Awaitable[object]]
Script = Callable[[Request], Iterable[Step]]
Scorer = Callable[[ScoreRequest], Scores]

INFO = EngineInfo(
    model="fake",
    family="fake",
    vocab_size=512,
    context_len=4096,
    max_canvas_len=64,
    device="cpu",
    dtype="float32",
    num_pages=1024,
    page_size=16,
    weight_bytes=0,
    fingerprint="fp_fake",
)


class FakeEngine:
    def __init__(self, script: Script, score: Scorer | None = None, info: EngineInfo = INFO) -> None:
        self.script = script
        self.scorer = score or likeliest_first
        self.info = info
        self.is_ready = True
        self.seen: list[Request] = []
        self.scored: list[ScoreRequest] = []
        self.num_open = 0
        self.num_aborted = 0
        self.num_finished = 0

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        if not self.is_ready:
            raise EngineUnavailable("the worker is starting")
        self.seen.append(request)
        mailbox = Mailbox()
        self.num_open += 1
        player = asyncio.create_task(play(self.script(request), mailbox))
        is_finished = False
        try:
            while not is_finished:
                event = await mailbox.get()
                is_finished = isinstance(event, Delta) and event.finish is not None
                yield event
        finally:
            player.cancel()
            self.num_open -= 1
            self.num_finished += is_finished
            self.num_aborted += not is_finished

    async def score(self, request: ScoreRequest) -> Scores:
        self.scored.append(request)
        return self.scorer(request)

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=self.num_open,
            free_pages=self.info.num_pages - self.num_open,
            requests=len(self.seen),
            aborts=self.num_aborted,
        )

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if self.is_ready else EngineState.STARTING)

    async def close(self) -> None:
        self.is_ready = False


class Mailbox:
    """Between script and reader: keeps every delta and only the newest frame."""

    def __init__(self) -> None:
        self._items: deque[Event | BaseException] = deque()
        self._has_some = asyncio.Event()

    def put(self, item: Event | BaseException) -> None:
        if isinstance(item, Frame) and self._items and isinstance(self._items[-1], Frame):
            self._items.pop()
        self._items.append(item)
        self._has_some.set()

    async def get(self) -> Event:
        await self._has_some.wait()
        item = self._items.popleft()
        if not self._items:
            self._has_some.clear()
        if isinstance(item, BaseException):
            raise item
        return item


async def play(script: Iterable[Step], mailbox: Mailbox) -> None:
    for step in script:
        if callable(step):
            await step()
        else:
            mailbox.put(step)
            await asyncio.sleep(0)


def spoken(
    request: Request, ids: Sequence[int], piece_len: int = 4, finish: FinishReason = FinishReason.STOP
) -> list[Step]:
    """Emit the ids in deltas of `piece_len` tokens, truncated at the request's limit, with correct usage at the end."""
    room = request.params.max_new_tokens
    said = tuple(ids)[:room]
    pieces = [said[i : i + piece_len] for i in range(0, len(said), piece_len)] or [()]
    reason = FinishReason.LENGTH if len(ids) > room else finish
    rounds = len(pieces) if request.params.decoder.name is DecoderName.VERIFY else 0
    count, forwards = len(said), len(pieces)
    usage = Usage(len(request.prompt_ids), 0, count, forwards, drafted=count, accepted=count, rounds=rounds)
    deltas: list[Step] = [Delta(request.id, piece) for piece in pieces[:-1]]
    return [*deltas, Delta(request.id, pieces[-1], finish=reason, usage=usage)]


def resolving(request: Request, ids: Sequence[int], canvas_len: int = 8) -> list[Step]:
    """Like `spoken`, but each canvas is shown half decided and then decided before it is committed."""
    steps: list[Step] = []
    for delta in spoken(request, ids, canvas_len):
        assert isinstance(delta, Delta)
        steps += [canvas_frame(delta, 2 * len(steps), 0.5), canvas_frame(delta, 2 * len(steps) + 1, 1.0), delta]
    return steps


def canvas_frame(delta: Delta, step: int, share: float) -> Frame:
    num = len(delta.token_ids)
    decided = tuple(i < share * num for i in range(num))
    confidence = tuple(0.9 if is_decided else 0.3 for is_decided in decided)
    return Frame(delta.request_id, step, delta.token_ids, decided, confidence)


def likeliest_first(request: ScoreRequest) -> Scores:
    parts = request.next_tokens or request.continuations
    logprobs = tuple((-0.5 * (i + 1),) * len(ids) for i, ids in enumerate(parts))
    if request.num_top is None:
        return Scores(logprobs)
    top = tuple((token, -0.25 * (token + 1)) for token in range(request.num_top))
    details = (
        tuple(TokenLogprob(i, p, top, 7) for i, p in zip(*one, strict=True))
        for one in zip(parts, logprobs, strict=True)
    )
    return Scores(logprobs, details=tuple(details))
