"""Questions through an Engine in this very thread, so many at a time: tokens, cost and times of every answer.

No event loop and no text on the way, so that the engine alone is timed; only a question with stop strings is read as it
comes. A Way is how questions are decoded: a decoder, and how the engine is to run it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from quicksilver.backends.round_cost import RoundCost, TimedRound
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, FinishReason, Request, Usage
from quicksilver.engine.engine import Engine
from quicksilver.evals.task import Answer, Generate
from quicksilver.text.answer import AnswerReader, CollectedAnswer, ReadOptions
from quicksilver.text.channels import Channels
from quicksilver.text.conversation import ToolCall
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Way:
    """`canvas_rows` and `tree_rows` as in EngineConfig; None leaves the engine's own."""

    name: str
    decoder: DecoderParams
    # Whether every canvas has the decoder's own length.
    is_fixed: bool = False
    canvas_rows: int | None = None
    tree_rows: int | None = None
    banned_ids: tuple[int, ...] = ()


TELL_EVERY_S = 10.0
AR = Way("ar", DecoderParams(DecoderName.AR, 1))
# What a request gets that says nothing; `as_served` adds what the server bans.
SERVED = Way("verify, as served", DecoderParams(DecoderName.VERIFY, 16))


def as_served(tokenizer: Tokenizer) -> Way:
    """As `server.plan.ban_tags` does, with room for tool calls."""
    roles = tokenizer.roles
    useful = {*tokenizer.eos_ids, roles.tool_open, roles.tool_close}
    return replace(SERVED, banned_ids=tuple(sorted(tokenizer.mute_ids - useful)))


def two_forwards(canvas_len: int, tree_rows: int | None = None) -> Way:
    decoder = DecoderParams(DecoderName.VERIFY, canvas_len)
    tree = f" with a tree of {tree_rows}" if tree_rows else " without a tree"
    name = f"verify {canvas_len}" + ("" if tree_rows is None else tree)
    return Way(name, decoder, is_fixed=True, canvas_rows=0, tree_rows=tree_rows)


@dataclass(slots=True)
class Reply:
    token_ids: list[int] = field(default_factory=list)
    seconds: float = 0.0
    # Until the first tokens.
    first_s: float = 0.0
    # How many tokens came first.
    num_first: int = 0
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str = ""

    @property
    def is_whole(self) -> bool:
        return self.finish is not None and self.finish is not FinishReason.ERROR


@dataclass(frozen=True, slots=True)
class Replies:
    """In the order of the questions; None where time ran out first."""

    replies: list[Reply | None]
    seconds: float

    @property
    def whole(self) -> list[Reply]:
        return [reply for reply in self.replies if reply is not None and reply.is_whole]

    @property
    def num_tokens(self) -> int:
        return sum(len(reply.token_ids) for reply in self.replies if reply is not None)


@contextmanager
def decoding(engine: Engine, way: Way) -> Iterator[None]:
    """The engine runs `way` inside: other settings in its scheduler, lengths as asked for instead of those that pay,
    and only the graphs with the trees asked for."""
    scheduler, graphs = engine.scheduler, getattr(engine.backend, "rounds", {})
    lengths, shapes = scheduler.canvas_length, dict(graphs)
    before = lengths.canvas_rows, lengths.round_cost
    if way.canvas_rows is not None:
        lengths.canvas_rows = way.canvas_rows
    lone_rows = (0, tree_rows_of(engine, way))
    unwanted = [shape for shape in graphs if shape.num_sequences == 1 and shape.tree_rows not in lone_rows]
    if way.is_fixed:
        lengths.round_cost = _always(way.decoder.canvas_len)
    for shape in unwanted:
        del graphs[shape]
    try:
        yield
    finally:
        lengths.canvas_rows, lengths.round_cost = before
        graphs.update(shapes)


def tree_rows_of(engine: Engine, way: Way) -> int:
    """Of a lone request's rounds of 16, by the way or by the engine's own choice; a shorter canvas has none."""
    if way.tree_rows is not None or engine.scheduler.canvas_length.round_cost is None:
        return way.tree_rows or 0
    rounds = engine.scheduler.canvas_length.round_cost.rounds
    return max((timed.tree_rows for timed in rounds if timed.num_requests == 1), default=0)


def _always(canvas_len: int) -> RoundCost:
    """Drafts and verifications in step, as the engine has them, at one length whatever pays."""
    return RoundCost({}, (TimedRound(1 << 20, canvas_len, 1.0),))


def answer_all(
    engine: Engine, asks: Sequence[Generate], way: Way, streams: int, seconds: float, tokenizer: Tokenizer | None = None
) -> Replies:
    """Every question once, `streams` at a time. Prompts are shared with no other call, so all begin uncached."""
    crowd = _Crowd(engine, asks, way, tokenizer)
    start = time.perf_counter()
    with decoding(engine, way):
        crowd.run(streams, start + seconds)
    errors = {reply.error for reply in crowd.replies if reply is not None and reply.error}
    if errors:
        print(f"   {way.name}: some requests failed: {sorted(errors)[:3]}", flush=True)
    return Replies(crowd.replies, time.perf_counter() - start)


class _Crowd:
    def __init__(self, engine: Engine, asks: Sequence[Generate], way: Way, tokenizer: Tokenizer | None) -> None:
        self.engine, self.asks, self.way, self.tokenizer = engine, asks, way, tokenizer
        self.replies: list[Reply | None] = [None] * len(asks)
        self._open: dict[str, tuple[int, float, Reply]] = {}
        self._readers: dict[str, Channels] = {}
        self._tenant = f"{way.name} {time.perf_counter_ns()}"

    def run(self, streams: int, deadline: float) -> None:
        queue, told = iter(range(len(self.asks))), time.perf_counter()
        self._add(queue, streams)
        while self.engine.has_work:
            ended = sum(self._take(event) for event in self.engine.step() if isinstance(event, Delta))
            now = time.perf_counter()
            if now > deadline:
                self._abandon()
                return
            if now > told + TELL_EVERY_S:
                told = now
                self._tell(deadline - now)
            self._add(queue, ended)

    def _tell(self, left: float) -> None:
        done = [reply for reply in self.replies if reply is not None]
        tokens = sum(len(reply.token_ids) for reply in done)
        count = len(self.asks)
        print(f"   {self.way.name}: {len(done)}/{count}, {tokens} tokens, {left:.0f} s left", flush=True)

    def _add(self, queue: Iterator[int], count: int) -> None:
        for _, index in zip(range(count), queue, strict=False):
            ask, name = self.asks[index], f"q{index}"
            params = DecodeParams(
                ask.max_new_tokens,
                stop_ids=ask.stop_ids,
                logit_bias=ask.logit_bias,
                banned_ids=self.way.banned_ids,
                decoder=self.way.decoder,
            )
            if ask.stop and self.tokenizer is not None:
                self._readers[name] = Channels(self.tokenizer, stop=ask.stop, tool_names=ask.tool_names)
            self._open[name] = (index, time.perf_counter(), Reply())
            self.engine.add(Request(name, ask.prompt_ids, params, self._tenant, ask.constraint))

    def _take(self, delta: Delta) -> bool:
        """Note what came; whether it was the last."""
        index, start, reply = self._open[delta.request_id]
        reply.token_ids += delta.token_ids
        if not reply.first_s and delta.token_ids:
            reply.first_s, reply.num_first = time.perf_counter() - start, len(delta.token_ids)
        if delta.finish is None:
            self._stop_at_string(delta)
            return False
        reply.seconds, reply.finish = time.perf_counter() - start, delta.finish
        reply.usage, reply.error = delta.usage, delta.error or ""
        self.replies[index] = reply
        del self._open[delta.request_id]
        return True

    def _stop_at_string(self, delta: Delta) -> None:
        reader = self._readers.get(delta.request_id)
        if reader is not None:
            reader.push(delta.token_ids)
            if reader.stopped is not None:
                del self._readers[delta.request_id]
                self.engine.abort(delta.request_id)

    def _abandon(self) -> None:
        for name in list(self._open):
            self.engine.abort(name)
        while self.engine.has_work:
            self.engine.step()


def read(tokenizer: Tokenizer, ask: Generate, reply: Reply) -> Answer:
    """The reply as evaluations score it."""
    reader = AnswerReader(Request("", ask.prompt_ids), ReadOptions(ask.stop, ask.tool_names), tokenizer)
    answer = CollectedAnswer()
    for piece in reader.read(Delta("", tuple(reply.token_ids), finish=reply.finish)):
        answer.add(piece)
    calls = tuple(ToolCall(call.name, call.arguments) for call in answer.calls)
    return Answer(answer.content.removeprefix(ask.lead), calls, tuple(reply.token_ids), reply.finish, reply.usage)
