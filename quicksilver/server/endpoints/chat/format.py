"""ChatFormat: the pieces of chat answers -> `chat.completion` and `chat.completion.chunk`.

Plain streams append and never retract. With `diffusing`, the content of a chunk replaces the content shown before, and
the last one equals the plain content byte for byte.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from quicksilver.accounts.records import StoredReply
from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.endpoints.chat.frames import FrameFormat
from quicksilver.server.endpoints.chat.stored import StoredChat
from quicksilver.server.endpoints.chat.wire import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    FinishReply,
    LogprobsReply,
    MessageReply,
    ReasoningSummary,
    TokenLogprobReply,
    ToolCallReply,
    TopLogprob,
)
from quicksilver.server.generation.plan import ReplyChunks, ReplyPlan, with_ignored
from quicksilver.server.generation.prompt_scores import prompt_logprobs_reply
from quicksilver.server.generation.respond import ReplyFormat, StreamableBody, running_usage, wants_usage
from quicksilver.server.generation.usage import metrics_field, usage_reply
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, FrameSnapshot, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta
from quicksilver.text.tokenizer import Tokenizer

MAX_SUMMARY_CHARS = 400


def finish_reason(finished: Finished) -> FinishReply:
    if finished.reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if finished.num_calls else "stop"


def new_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


def summarise(reasoning: str, *, may_think: bool) -> ReasoningSummary:
    """The opening of the reasoning, cut at a sentence."""
    text = " ".join(reasoning.split())
    if not text:
        return {"content": None, "status": "unavailable" if may_think else "skipped"}
    if len(text) > MAX_SUMMARY_CHARS:
        opening = text[:MAX_SUMMARY_CHARS]
        text = opening[: opening.rfind(". ") + 1] or opening
    return {"content": text, "status": "complete"}


class LogprobFormat:
    """Log-probabilities in OpenAI's form: each token as text and as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, logprobs: Sequence[TokenLogprob]) -> LogprobsReply:
        return {"content": [self._token(entry) for entry in logprobs], "refusal": None}

    def _token(self, entry: TokenLogprob) -> TokenLogprobReply:
        top = [self._named(token_id, logprob) for token_id, logprob in entry.top]
        named = self._named(entry.token_id, entry.logprob)
        return {"token": named["token"], "logprob": named["logprob"], "bytes": named["bytes"], "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> TopLogprob:
        # -9999 is what OpenAI prints for "impossible"; JSON has no infinity.
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": max(logprob, -9999.0),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


class ChatReplyFormat(ReplyFormat):
    """What all replies in the form of a chat completion share."""

    def __init__(
        self, plan: ReplyPlan, body: StreamableBody, services: Services, fingerprint: str | None = None
    ) -> None:
        """`fingerprint` is that of the engine, unless it is given."""
        self.plan = plan = with_ignored(plan, body.ignored)
        self.fingerprint = fingerprint or services.engine.info.fingerprint
        self.has_usage = wants_usage(body)
        self.chat_chunks = ChatChunks(plan, self.fingerprint, has_usage=self.has_usage)

    def end(self, finished: Sequence[Finished]) -> Iterable[ChatChunk]:
        return (cast(ChatChunk, self.chat_chunks.with_usage(finished)),) if self.has_usage else ()

    def completion(
        self, answers: Sequence[CollectedAnswer], finished: Sequence[Finished], logprobs: LogprobFormat | None = None
    ) -> ChatCompletion:
        """`finished` is what the usage counts."""
        reply: ChatCompletion = {
            "id": self.plan.id,
            "object": "chat.completion",
            "created": self.plan.created,
            "model": self.plan.model,
            "choices": [choice(i, answer, logprobs) for i, answer in enumerate(answers)],
            "usage": usage_reply(finished, self.plan.num_answers),
            "warning": self.plan.warning,
            "reasoning_summary": None,
            "system_fingerprint": self.fingerprint,
        }
        if "metrics" in (fields := metrics_field(finished)):
            reply["metrics"] = fields["metrics"]
        return reply


class ChatFormat(ChatReplyFormat):
    def __init__(
        self, plan: ReplyPlan, body: ChatBody, services: Services, owner: str = "", fingerprint: str | None = None
    ) -> None:
        """A reply that is stored belongs to `owner`."""
        super().__init__(plan, body, services, fingerprint)
        self._has_summary = bool(body.reasoning_summary)
        self._may_think = plan.answers[0].options.opens_thinking
        self._reply: ChatCompletion | None = None
        self._logprobs = LogprobFormat(services.tokenizer) if body.logprobs else None
        self._tokenizer = services.tokenizer
        self._running = running_usage(plan, body)
        self._stored = StoredChat(owner, body) if body.store and services.storage.is_on else None
        style = read_style(body, plan, services)
        self._streams = [ChatStream(i, self.chat_chunks, services.tokenizer, style) for i in range(len(plan.answers))]

    def whole(self, answers: Sequence[CollectedAnswer]) -> ChatCompletion:
        reply = self.completion(answers, [answer.finished for answer in answers], self._logprobs)
        if self._has_summary:
            reply["reasoning_summary"] = summarise(answers[0].reasoning, may_think=self._may_think)
        if answers[0].prompt_logprobs:
            reply["prompt_logprobs"] = prompt_logprobs_reply(answers[0].prompt_logprobs, self._tokenizer)
        self._reply = reply
        return reply

    def stored(self) -> StoredReply | None:
        if self._stored is None:
            return None
        return self._stored.with_reply(self._reply or self.whole([stream.answer for stream in self._streams]))

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[ChatChunk]:
        chunks = self._streams[index].chunks(piece)
        if self._running is None:
            return chunks
        usage = self._running.observe(index, piece)
        return [{**chunk, "usage": usage} for chunk in chunks]


def choice(index: int, answer: CollectedAnswer, logprobs: LogprobFormat | None) -> ChatChoice:
    reply: ChatChoice = {
        "index": index,
        "message": message(answer),
        "finish_reason": finish_reason(answer.finished),
        "logprobs": logprobs.reply(answer.logprobs) if logprobs else None,
    }
    if answer.finished.probabilities is not None:
        reply["probabilities"] = dict(answer.finished.probabilities)
    return reply


def message(answer: CollectedAnswer) -> MessageReply:
    calls: list[ToolCallReply] = [
        {
            "index": i,
            "id": new_call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(answer.calls)
    ]
    reply: MessageReply = {
        "role": "assistant",
        "content": answer.content if answer.content or not calls else None,
        "tool_calls": calls,
        "tool_call_id": None,
        "refusal": None,
    }
    if answer.reasoning:
        reply["reasoning_content"] = answer.reasoning
    return reply


class ChatChunks(ReplyChunks):
    def __init__(self, plan: ReplyPlan, fingerprint: str, *, has_usage: bool) -> None:
        super().__init__("chat.completion.chunk", plan, fingerprint, has_usage=has_usage)

    def chunk(self, index: int, delta: dict[str, Any], finish: FinishReply | None = None) -> ChatChunk:
        return cast(ChatChunk, self.with_choice(index, {"delta": delta}, finish))

    def opening(self, index: int) -> ChatChunk:
        """Mercury repeats the role on every chunk; here it comes once, since clients append repeated strings."""
        chunk = self.chunk(index, {"role": "assistant", "content": ""})
        chunk["reasoning_summary"] = None
        return chunk


class CallDeltas:
    """Tool-call deltas of one answer: id, type and name once, arguments in pieces."""

    def __init__(self) -> None:
        self._num_opened = 0

    def delta(self, piece: ChannelDelta) -> dict[str, Any]:
        if piece.index < self._num_opened:
            return {"index": piece.index, "function": {"arguments": piece.text}}
        self._num_opened = piece.index + 1
        function = {"name": piece.name, "arguments": piece.text}
        return {"index": piece.index, "id": new_call_id(), "type": "function", "function": function}


def text_deltas(text: TextDelta, calls: CallDeltas) -> list[dict[str, Any]]:
    """One delta per run of the same channel, so that the tokens of one step share a chunk."""
    deltas: list[dict[str, Any]] = []
    for piece in text.deltas:
        if piece.channel is Channel.TOOL_CALL:
            deltas.append({"tool_calls": [calls.delta(piece)]})
        else:
            key = "content" if piece.channel is Channel.CONTENT else "reasoning_content"
            if deltas and key in deltas[-1]:
                deltas[-1][key] += piece.text
            else:
                deltas.append({key: piece.text})
    return deltas


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """Options of a chat stream."""

    has_logprobs: bool = False
    # Snapshots that list tokens also list the alternatives at each position.
    has_alternatives: bool = False
    has_summary: bool = False
    may_think: bool = False
    is_diffusing: bool = False
    # Snapshots list every canvas position, and none is skipped for coming too soon.
    shows_tokens: bool = False
    # Seconds between two snapshots.
    min_gap_s: float = 0.0


def read_style(body: ChatBody, plan: ReplyPlan, services: Services) -> StreamStyle:
    return StreamStyle(
        has_logprobs=bool(body.logprobs),
        has_alternatives=bool(body.logprobs and body.top_logprobs),
        has_summary=bool(body.reasoning_summary),
        may_think=plan.answers[0].options.opens_thinking,
        is_diffusing=bool(body.diffusing),
        shows_tokens=body.diffusion_detail == "tokens",
        min_gap_s=1 / services.config.frames_per_s,
    )


class ChatStream:
    """The chunks of one answer: opening, deltas or snapshots, closing."""

    def __init__(self, index: int, chunks: ChatChunks, tokenizer: Tokenizer, style: StreamStyle) -> None:
        self._index = index
        self._chunks = chunks
        self._style = style
        self._frames: FrameFormat | None = None
        if style.is_diffusing:
            listing = tokenizer if style.shows_tokens else None
            self._frames = FrameFormat(listing, has_alternatives=style.has_alternatives)
        self._logprobs = LogprobFormat(tokenizer) if style.has_logprobs else None
        self._calls = CallDeltas()
        self._answer = CollectedAnswer()
        self._unsent_logprobs: list[TokenLogprob] = []
        self._is_open = False
        self._last_snapshot = float("-inf")
        self._shown_text = ""
        self._has_frames = False

    @property
    def answer(self) -> CollectedAnswer:
        """All that was streamed so far."""
        return self._answer

    def chunks(self, piece: AnswerPiece) -> Iterator[ChatChunk]:
        if not self._is_open:
            self._is_open = True
            yield self._chunks.opening(self._index)
        self._answer.add(piece)
        if isinstance(piece, TextDelta):
            yield from self._text_chunks(piece)
        elif isinstance(piece, FrameSnapshot):
            yield from self._snapshot_chunks(piece)
        elif isinstance(piece, Finished):
            yield from self._closing_chunks(piece)

    def _text_chunks(self, text: TextDelta) -> Iterator[ChatChunk]:
        self._unsent_logprobs += text.logprobs
        if self._frames is not None:
            self._frames.add_committed(text.committed)
        for delta in text_deltas(text, self._calls):
            if "content" not in delta or self._frames is None:
                yield self._with_logprobs(self._chunks.chunk(self._index, delta), is_content="content" in delta)
            elif not self._has_frames and self._answer.content != self._shown_text and self._is_due():
                yield self._committed_snapshot(self._frames, step=0)

    def _snapshot_chunks(self, snapshot: FrameSnapshot) -> Iterator[ChatChunk]:
        # A frame shows more than the text committed just before it, so committed text waits for the next frame.
        self._has_frames = True
        if self._frames is not None and (self._style.shows_tokens or self._is_due()):
            yield {**self._snapshot(snapshot.text), "quicksilver": self._frames.reply(snapshot)}

    def _closing_chunks(self, finished: Finished) -> Iterator[ChatChunk]:
        frames, is_shown = self._frames, self._answer.content == self._shown_text
        if frames is not None and (frames.has_unsent or not is_shown):
            yield self._committed_snapshot(frames, step=finished.usage.forwards)
        closing = self._chunks.chunk(self._index, {}, finish_reason(finished))
        if finished.probabilities is not None:
            closing["choices"][0]["probabilities"] = dict(finished.probabilities)
        if self._style.has_summary:
            closing["reasoning_summary"] = summarise(self._answer.reasoning, may_think=self._style.may_think)
        yield self._with_logprobs(closing, is_content=True)

    def _committed_snapshot(self, frames: FrameFormat, step: int) -> ChatChunk:
        content = self._answer.content
        return {**self._snapshot(content), "quicksilver": frames.committed_reply(content, step)}

    def _snapshot(self, text: str) -> ChatChunk:
        self._shown_text = text
        return self._chunks.chunk(self._index, {"content": text})

    def _with_logprobs(self, chunk: ChatChunk, *, is_content: bool) -> ChatChunk:
        if self._logprobs is not None and is_content and self._unsent_logprobs:
            chunk["choices"][0]["logprobs"] = self._logprobs.reply(self._unsent_logprobs)
            self._unsent_logprobs = []
        return chunk

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last_snapshot < self._style.min_gap_s:
            return False
        self._last_snapshot = now
        return True
