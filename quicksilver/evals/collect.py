"""Sends one prompt to an `EngineClient` and collects one `Answer`.

Answers are read by the same code as in the server, so reasoning is not scored and tool calls are parsed identically.
"""

from __future__ import annotations

from contextlib import aclosing

from quicksilver.core import DecodeParams, DecoderParams, Delta, EngineClient, Request, ScoreRequest
from quicksilver.errors import RowFailed
from quicksilver.evals.task import Answer, Ask, Generate
from quicksilver.text.answer import AnswerReader, CollectedAnswer, ReadOptions
from quicksilver.text.conversation import ToolCall
from quicksilver.text.tokenizer import Tokenizer


async def collect(
    client: EngineClient, tokenizer: Tokenizer, request_id: str, ask: Ask, decoder: DecoderParams
) -> Answer:
    """Tokens that the prompt gives (`num_given`) and text that the answer must repeat (`lead`) are left out."""
    if not isinstance(ask, Generate):
        scores = await client.score(ScoreRequest(request_id, ask.prompt_ids, ask.continuations))
        num_given = ask.num_given or (0,) * len(ask.continuations)
        return Answer(logprobs=tuple(part[skip:] for part, skip in zip(scores.logprobs, num_given, strict=True)))
    params = DecodeParams(
        max_new_tokens=ask.max_new_tokens, stop_ids=ask.stop_ids, logit_bias=ask.logit_bias, decoder=decoder
    )
    request = Request(request_id, ask.prompt_ids, params, constraint=ask.constraint)
    reader, answer = AnswerReader(request, ReadOptions(ask.stop, ask.tool_names), tokenizer), CollectedAnswer()
    async with aclosing(client.stream(request)) as events:  # type: ignore[type-var]
        async for event in events:
            for piece in reader.read(event):
                answer.add(piece)
            if reader.is_finished and isinstance(event, Delta):
                text, calls = answer.content.removeprefix(ask.lead), answer.calls
                parsed = tuple(ToolCall(call.name, call.arguments) for call in calls)
                return Answer(text, parsed, tuple(answer.token_ids), event.finish, event.usage)
    raise RowFailed("the stream ended without a last delta")
