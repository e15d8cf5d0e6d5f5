"""A running quicksilver server as an `EngineClient`, so that evaluations measure the served model.

Token ids are sent and received over `/v1/completions`, so special tokens survive and answers are parsed by the same
code as in process. `connect` checks the server once before the first request.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote

from quicksilver.core import (
    DecodeParams,
    DecoderName,
    DecoderParams,
    Delta,
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    FinishReason,
    Request,
    ScoreRequest,
    Scores,
    Usage,
)
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.evals.http_link import Link
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import Message
from quicksilver.text.tokenizer import Tokenizer

# Tokenized locally and by the server. Different ids mean a different tokenizer or template.
SAMPLE = "Is naïve  code\n\tlike `x = 10` the same there?"
_EVENT = "data: "
_END = "[DONE]"


class ServedEngine:
    """Created by `connect`. It supports token ids, limits, sampling parameters, decoders and forced prefixes, but no
    grammars, reasoning budgets or frames. All of `Usage` is returned except `rows`."""

    def __init__(self, link: Link, info: EngineInfo) -> None:
        self._link = link
        self.info = info
        self.is_ready = True

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        num_prompt, num_new = len(request.prompt_ids), request.params.max_new_tokens
        if num_prompt + num_new > self.info.context_len:
            # A server would shorten the answer. The in-process engine refuses, so the item fails visibly here too.
            raise ContextTooLong(f"{num_prompt} prompt tokens and {num_new} new ones exceed the context")
        body = {**completion_body(self.info.model, request), "stream": True, "stream_options": {"include_usage": True}}
        reader = _ReplyReader(request.id)
        async with aclosing(self._link.lines("completions", body)) as lines:
            async for line in lines:
                with self._link.reading():
                    delta = reader.read(line)
                if delta is not None:
                    yield delta

    async def score(self, request: ScoreRequest) -> Scores:
        raise InvalidRequest("likelihoods are not served: they need the engine in this process")

    async def stats(self) -> EngineStats:
        return EngineStats()

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if self.is_ready else EngineState.CLOSED)

    async def close(self) -> None:
        self.is_ready = False
        await self._link.aclose()


class _ReplyReader:
    """Converts stream events into deltas. The last delta is held back until the usage event after it arrives."""

    def __init__(self, request_id: str) -> None:
        self._last = Delta(request_id)

    def read(self, line: str) -> Delta | None:
        if not line.startswith(_EVENT) or line == _EVENT + _END:
            return None
        chunk = json.loads(line.removeprefix(_EVENT))
        if error := chunk.get("error"):
            return replace(self._last, finish=FinishReason.ERROR, error=f"{error['code']}: {error['message']}")
        if not chunk["choices"]:
            return replace(self._last, usage=usage_of(chunk["usage"]))
        (choice,) = chunk["choices"]
        delta = Delta(self._last.request_id, tuple(choice["token_ids"]))
        if choice["finish_reason"] is None:
            return delta
        self._last = replace(delta, finish=FinishReason(choice["finish_reason"]))
        return None


async def connect(link: Link, model: str, tokenizer: Tokenizer, template: ChatTemplate) -> ServedEngine:
    """Check the server and return a client. Raises if the server cannot be reached, refuses the key or the model, is
    not a quicksilver server, or renders prompts differently from `template`."""
    entry = await link.ask("GET", f"models/{quote(model)}")
    sample = {"model": model, "messages": [{"role": "user", "content": SAMPLE}]}
    tokenized = await link.ask("POST", "tokenize", sample)
    with link.reading():
        context_len, theirs = int(entry["context_length"]), tuple(tokenized["tokens"])
    ours = template.render([Message("user", SAMPLE)]).ids
    if theirs != ours:
        raise InvalidRequest(f"what {link.url} serves as {model} has another tokenizer or template than {model} here")
    plain = DecodeParams(
        max_new_tokens=1, stop_ids=tokenizer.eos_ids, decoder=DecoderParams(DecoderName.AR, canvas_len=1)
    )
    probe = Request("probe", ours, plain)
    reply = await link.ask("POST", "completions", completion_body(model, probe))
    with link.reading():
        _, fingerprint = reply["choices"][0]["token_ids"], str(reply["system_fingerprint"])
    return ServedEngine(link, _known(model, tokenizer.vocab_size, context_len, link.url, fingerprint))


def _known(model: str, vocab_size: int, context_len: int, url: str, fingerprint: str) -> EngineInfo:
    """Engine facts of a server. The URL stands for the device; unknown fields are empty."""
    return EngineInfo(
        model=model,
        family="",
        vocab_size=vocab_size,
        context_len=context_len,
        max_canvas_len=0,
        device=url,
        dtype="",
        num_pages=0,
        page_size=0,
        weight_bytes=0,
        fingerprint=fingerprint,
    )


def completion_body(model: str, request: Request) -> dict[str, Any]:
    params = request.params
    return {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "seed": params.seed,
        "stop_ids": list(params.stop_ids),
        "logit_bias": {str(token_id): bias for token_id, bias in params.logit_bias.items()},
        "decoder": asdict(params.decoder),
        "lead": request.constraint.lead if request.constraint else None,
        "allow_special_ids": True,
        "return_token_ids": True,
    }


def usage_of(reply: Mapping[str, Any]) -> Usage:
    work = reply["quicksilver"]
    return Usage(
        reply["prompt_tokens"],
        reply["cached_input_tokens"],
        reply["completion_tokens"],
        work["forwards"],
        drafted=work["drafted_tokens"],
        accepted=work["accepted_tokens"],
        rounds=work["rounds"],
    )
