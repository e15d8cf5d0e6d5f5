"""respond: the one way from a plan to an HTTP reply, whole or streamed, for every endpoint that generates.

An endpoint supplies a ReplyFormat. Reservation, replay of an Idempotency-Key, disconnects, errors inside a stream and
charging are handled here and in `job`. Two headers, for all APIs, say how a request waits for the engine:

| header | value |
|---|---|
| `X-Quicksilver-Priority` | `interactive` (default), or `batch`: admitted after the others, without a time limit |
| `X-Quicksilver-Start-Within` | seconds; a request that cannot start within them gets a 503 at once |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from fastapi import Request
from starlette.responses import Response

from quicksilver.accounts.records import Gauge, Idempotency, Order, SavedReply, StoredReply
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.server.config import ServerConfig
from quicksilver.server.generation.billing import Billing
from quicksilver.server.generation.job import Job, ReplyJob
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.usage import RunningUsage
from quicksilver.server.http.body import DONE, KEEP_ALIVE, EventStream, data_event, while_connected
from quicksilver.server.http.errors import JSON, envelope, error_response
from quicksilver.server.http.fields import StreamOptions
from quicksilver.server.http.guard import BATCH_CALLER, as_refusal, caller_of
from quicksilver.server.http.request_record import record_of
from quicksilver.server.services import Services, services_of
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

    # Needs an optional extra.
    from quicksilver.server.generation.reply_trace import ReplyTrace

# Longest stream that is kept for replay. A longer one is generated and charged again when it is requested again.
MAX_RECORDED_BYTES = 4 * 2**20

Chunk = Mapping[str, Any]


class StreamableBody(Protocol):
    """What `respond` reads from a request body."""

    @property
    def stream(self) -> bool | None: ...

    @property
    def stream_options(self) -> StreamOptions | None: ...

    @property
    def raw(self) -> bytes:
        """The body as it was sent."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of fields that were sent and ignored."""


class ReplyFormat(ABC):
    """How one API writes one reply. Streams are OpenAI's unless a subclass overrides `encode` and `last_bytes`."""

    last_bytes = DONE
    stream_type: type[EventStream] = EventStream
    # Sent while the stream is idle.
    keep_alive = KEEP_ALIVE

    @abstractmethod
    def whole(self, answers: Sequence[CollectedAnswer]) -> Mapping[str, Any]:
        """The reply that is not streamed."""

    async def prepare(self, answers: Sequence[CollectedAnswer]) -> None:  # noqa: B027
        """Called before `whole` with the same answers, for work that must not be done on the event loop."""

    def begin(self) -> Iterable[Chunk]:
        """Chunks that precede every answer."""
        return ()

    async def receive(self, index: int, piece: AnswerPiece) -> None:  # noqa: B027
        """Called before `chunks` with the same piece, for work that must not be done on the event loop."""

    @abstractmethod
    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[Chunk]:
        """Chunks for one piece of the answer with this number."""

    def end(self, finished: Sequence[Finished]) -> Iterable[Chunk]:
        """Chunks that follow every answer."""
        return ()

    def stored(self) -> StoredReply | None:
        """What is stored when the reply is charged; called once it is complete."""
        return None

    def failure(self, error: QuicksilverError) -> Iterable[Chunk]:
        """Chunks for an error inside the stream; nothing follows them."""
        return (envelope(error),)

    def encode(self, chunk: Chunk) -> bytes:
        return data_event(chunk)


class WrappedFormat(ReplyFormat):
    """Writes a reply as another format does. Subclasses override what they change."""

    @property
    @abstractmethod
    def form(self) -> ReplyFormat: ...

    def whole(self, answers: Sequence[CollectedAnswer]) -> Mapping[str, Any]:
        return self.form.whole(answers)

    async def prepare(self, answers: Sequence[CollectedAnswer]) -> None:
        await self.form.prepare(answers)

    def begin(self) -> Iterable[Chunk]:
        return self.form.begin()

    async def receive(self, index: int, piece: AnswerPiece) -> None:
        await self.form.receive(index, piece)

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[Chunk]:
        return self.form.chunks(index, piece)

    def end(self, finished: Sequence[Finished]) -> Iterable[Chunk]:
        return self.form.end(finished)

    def stored(self) -> StoredReply | None:
        return self.form.stored()


class Recording:
    """The bytes of a stream, kept for an equal request with the same Idempotency-Key."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        if self._num_bytes <= MAX_RECORDED_BYTES:
            self._chunks.append(chunk)

    def reply(self) -> SavedReply | None:
        """None if the stream is too long to be kept."""
        return SavedReply(200, b"".join(self._chunks)) if self._num_bytes <= MAX_RECORDED_BYTES else None


async def respond(
    request: Request, services: Services, body: StreamableBody, plan: ReplyPlan, form: ReplyFormat
) -> Response:
    """The reply to `body` by the model of `services`. What is refused before the first piece has its own status."""
    return await respond_with(request, body, open_job(request, services, body, plan), form)


async def respond_with(request: Request, body: StreamableBody, job: Job, form: ReplyFormat) -> Response:
    """As `respond`, for a job that is not started."""
    saved = await job.billing.find_saved_reply() if job.billing else None
    if saved is not None:
        return replay(saved, form.stream_type.media_type if body.stream else None)
    try:
        if not body.stream:
            reply = await while_connected(request, _whole_reply(job, form))
            return Response(reply, 200, reply_headers(job), media_type=JSON)
        await while_connected(request, job.start())
    except QuicksilverError as error:
        return error_response(error, reply_headers(job), request.scope["path"], record_of(request).id)
    keep_alive_s = services_of(request).config.keep_alive_comment_s
    return form.stream_type(stream_reply(job, form), job, keep_alive_s, reply_headers(job), form.keep_alive)


def wants_usage(body: StreamableBody) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def running_usage(plan: ReplyPlan, body: StreamableBody) -> RunningUsage | None:
    """The counts for every chunk, if the request asks for them."""
    if not wants_usage(body) or body.stream_options is None or not body.stream_options.continuous_usage_stats:
        return None
    return RunningUsage([len(answer.request.prompt_ids) for answer in plan.answers], plan.num_answers)


def open_job(request: Request, services: Services, body: StreamableBody, plan: ReplyPlan) -> ReplyJob:
    identity = caller_of(request).identity
    is_background = bool(getattr(body, "background", False))
    plan = with_scheduling(plan, request, services.config, is_background=is_background)
    record_of(request).reply_id = plan.id
    # Work in the background does not depend on what its reader receives.
    is_streamed = bool(body.stream) and not is_background
    trace = open_trace(request, services, plan, is_streamed=is_streamed)
    if services.accounts is None or identity is None:
        return ReplyJob(plan, services, is_streamed=is_streamed, trace=trace)
    idempotency = idempotency_of(request, body, services.accounts)
    order = order_of(plan, services, idempotency, is_batch=BATCH_CALLER in request.scope)
    billing = Billing(services.accounts, identity, order, services.in_flight)
    return ReplyJob(plan, services, billing, is_streamed=is_streamed, trace=trace)


def order_of(plan: ReplyPlan, services: Services, idempotency: Idempotency | None, *, is_batch: bool) -> Order:
    # An adapter costs what its base costs, and keys that may use the base may use it.
    model = services.base_id or services.config.card.id
    tokens = plan.num_prompt_tokens, plan.max_output_tokens
    return Order(plan.id, model, *tokens, idempotency, is_half_price=is_batch)


def open_trace(request: Request, services: Services, plan: ReplyPlan, *, is_streamed: bool) -> ReplyTrace | None:
    parent = record_of(request).trace
    if parent is None:
        return None
    from quicksilver.server.generation.reply_trace import ReplyTrace

    return ReplyTrace(parent, request.scope["route"].path, plan, services.metrics_id, is_streamed=is_streamed)


def idempotency_of(request: Request, body: StreamableBody, accounts: Accounts) -> Idempotency | None:
    """The Idempotency-Key of a request. Two requests are equal if their method, path and body are."""
    key = request.headers.get("idempotency-key")
    essence = b"\n".join((request.method.encode(), request.scope["path"].encode(), body.raw))
    return accounts.idempotency(key, essence) if key is not None else None


async def _whole_reply(job: Job, form: ReplyFormat) -> bytes:
    async with job:
        await job.start()
        answers = await job.collect()
        await form.prepare(answers)
        reply = orjson.dumps(form.whole(answers))
        await job.settle(SavedReply(200, reply), form.stored())
        return reply


async def stream_reply(job: Job, form: ReplyFormat) -> AsyncGenerator[bytes, None]:
    """The encoded chunks. The last ones are sent after the reply was settled, or replaced by an error."""
    recording = Recording() if job.billing is not None and job.billing.is_idempotent else None
    num_left, last = len(job.plan.answers), list[bytes]()
    try:
        for chunk in _encoded(form, form.begin(), recording):
            yield chunk
        while (numbered := await job.next_piece()) is not None:
            index, piece = numbered
            num_left -= isinstance(piece, Finished)
            await form.receive(index, piece)
            chunks = _encoded(form, form.chunks(index, piece), recording)
            if num_left == 0:
                last = chunks
                continue
            for chunk in chunks:
                yield chunk
            if isinstance(piece, TextDelta):
                job.add_delivered(piece.num_tokens)
        last += _encoded(form, form.end(job.finished), recording)
        if recording is not None:
            recording.add(form.last_bytes)
        await job.settle(recording.reply() if recording else None, form.stored())
        last.append(form.last_bytes)
    except Exception as error:
        job.fail(error)
        last = _encoded(form, form.failure(as_refusal(error, reply_id=job.plan.id)), None)
    for chunk in last:
        yield chunk


def _encoded(form: ReplyFormat, chunks: Iterable[Chunk], recording: Recording | None) -> list[bytes]:
    encoded = [form.encode(chunk) for chunk in chunks]
    if recording is not None:
        for chunk in encoded:
            recording.add(chunk)
    return encoded


def replay(saved: SavedReply, stream_media: str | None) -> Response:
    """`stream_media` is None for a reply that was not streamed."""
    headers = {"idempotent-replayed": "true"}
    if stream_media is None:
        return Response(saved.body, saved.status, headers, media_type=JSON)
    return Response(saved.body, saved.status, {**headers, "cache-control": "no-cache"}, media_type=stream_media)


def reply_headers(job: Job) -> dict[str, str]:
    return {**rate_limit_headers(job.billing), **job.headers}


def rate_limit_headers(billing: Billing | None) -> dict[str, str]:
    """OpenAI's names, where `tokens` counts input; input and output also have names of their own."""
    if billing is None:
        return {}
    limits = billing.limits
    gauges = {
        "requests": limits.requests,
        "tokens": limits.input_tokens,
        "input-tokens": limits.input_tokens,
        "output-tokens": limits.output_tokens,
    }
    return {key: value for name, gauge in gauges.items() for key, value in _gauge_headers(name, gauge).items()}


def _gauge_headers(name: str, gauge: Gauge) -> dict[str, str]:
    if gauge.limit is None:
        return {}
    return {
        f"x-ratelimit-limit-{name}": str(gauge.limit),
        f"x-ratelimit-remaining-{name}": str(gauge.remaining),
        f"x-ratelimit-reset-{name}": f"{gauge.reset_s:.3f}s",
    }


PRIORITY, START_WITHIN = "x-quicksilver-priority", "x-quicksilver-start-within"
PRIORITIES = ("interactive", "batch")
MAX_START_S = 3600.0


def with_scheduling(plan: ReplyPlan, request: Request, config: ServerConfig, *, is_background: bool) -> ReplyPlan:
    """The plan with priority and time limit in each of its requests. A background response has no time limit unless
    it states one."""
    is_batch = read_is_batch(request)
    limit_s = read_start_within(request)
    if is_batch:
        limit_s = 0.0
    elif limit_s is None:
        limit_s = 0.0 if is_background else config.start_within_s
    answers = tuple(
        replace(answer, request=replace(answer.request, is_batch=is_batch, start_within_s=limit_s))
        for answer in plan.answers
    )
    return replace(plan, answers=answers)


def read_is_batch(request: Request) -> bool:
    """A line of a batch is a batch request."""
    if BATCH_CALLER in request.scope:
        return True
    stated = request.headers.get(PRIORITY, PRIORITIES[0])
    if stated not in PRIORITIES:
        raise InvalidRequest(f"{PRIORITY}: {' or '.join(PRIORITIES)}", param=PRIORITY)
    return stated == PRIORITIES[1]


def read_start_within(request: Request) -> float | None:
    stated = request.headers.get(START_WITHIN)
    if stated is None:
        return None
    try:
        seconds = float(stated)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_START_S:
        raise InvalidRequest(f"{START_WITHIN}: seconds, more than 0 and at most {MAX_START_S:g}", param=START_WITHIN)
    return seconds
