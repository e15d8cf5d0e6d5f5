"""Sends one prompt to an `EngineClient` and collects one `Answer`.

Text is split into channels by the same code as in the server, so reasoning is not scored and tool calls are parsed
identically.
"""

from __future__ import annotations

from collections.abc import Iterable

from quicksilver.core import DecodeParams, DecoderParams, Delta, EngineClient, FinishReason, Request, ScoreRequest
from quicksilver.errors import RowFailed
from quicksilver.evals.task import Answer, Ask, Generate
from quicksilver.text.channels import Channel, ChannelDelta, Channels
from quicksilver.text.conversation import ToolCall
from quicksilver.text.tokenizer import Tokenizer


async def collect(
    client: EngineClient, tokenizer: Tokenizer, request_id: str, ask: Ask, decoder: DecoderParams
) -> Answer:
    if not isinstance(ask, Generate):
        scores = await client.score(ScoreRequest(request_id, ask.prompt_ids, ask.continuations))
        num_given = ask.num_given or (0,) * len(ask.continuations)
        return Answer(logprobs=tuple(part[skip:] for part, skip in zip(scores.logprobs, num_given, strict=True)))
    params = DecodeParams(
        max_new_tokens=ask.max_new_tokens, stop_ids=ask.stop_ids, logit_bias=ask.logit_bias, decoder=decoder
    )
    channels = Channels(tokenizer, stop=ask.stop, tool_names=ask.tool_names)
    pieces, token_ids = list[ChannelDelta](), list[int]()
    stream = client.stream(Request(request_id, ask.prompt_ids, params, constraint=ask.constraint))
    try:
        async for event in stream:
            if not isinstance(event, Delta):
                continue
            token_ids += event.token_ids
            pieces += channels.push(event.token_ids)
            if event.finish is not None or channels.stopped is not None:
                last = event
                break
        else:
            raise RowFailed("the stream ended without a last delta")
    finally:
        await stream.aclose()
    if last.finish is FinishReason.ERROR:
        code, _, message = (last.error or "row_failed: the request failed").partition(": ")
        raise RowFailed(message, code=code)
    text, calls = join_channels([*pieces, *channels.finish()])
    return Answer(text.removeprefix(ask.lead), calls, tuple(token_ids), last.finish, last.usage)


def join_channels(pieces: Iterable[ChannelDelta]) -> tuple[str, tuple[ToolCall, ...]]:
    """Join the content into one text, and each tool call's arguments into one JSON text."""
    text, names, arguments = "", dict[int, str](), dict[int, str]()
    for piece in pieces:
        if piece.channel is Channel.CONTENT:
            text += piece.text
        elif piece.channel is Channel.TOOL_CALL:
            names[piece.index] = names.get(piece.index, "") + piece.name
            arguments[piece.index] = arguments.get(piece.index, "") + piece.text
    return text, tuple(ToolCall(names[i], arguments[i]) for i in sorted(names))
