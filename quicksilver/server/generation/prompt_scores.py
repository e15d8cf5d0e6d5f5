"""Log-probabilities of the prompt's own tokens, for `echo` with `logprobs` and for `prompt_logprobs`.

The prompt is scored before the answer is generated. Both use the same KV pages, so the prompt is computed once, and it
is charged as not cached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from typing_extensions import TypedDict

from quicksilver.core import EngineClient, ScoreRequest, TokenLogprob
from quicksilver.errors import InvalidRequest
from quicksilver.server.generation.plan import AnswerRequest
from quicksilver.text.answer import AnswerPiece, Finished, ScoredPrompt, TextDelta
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ScoredPromptRequest(AnswerRequest):
    """An answer request whose first piece is a ScoredPrompt."""

    # Alternatives at each position.
    num_top: int = 0

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        yield ScoredPrompt((None, *await self._score(engine)))
        async with aclosing(AnswerRequest.pieces(self, engine, tokenizer)) as pieces:
            async for piece in pieces:
                yield _uncached(piece)

    async def _score(self, engine: EngineClient) -> Sequence[TokenLogprob]:
        first, *rest = self.request.prompt_ids
        if not rest:
            return ()
        request = ScoreRequest(
            f"{self.request.id}/prompt", (first,), (tuple(rest),), self.request.tenant, num_top=self.num_top
        )
        try:
            return (await engine.score(request)).details[0]
        except InvalidRequest as refusal:
            # The engine names its own field; the caller's is `prompt`.
            refusal.param = "prompt"
            raise


def _uncached(piece: AnswerPiece) -> AnswerPiece:
    """Pages that were found in the cache are those that scoring wrote."""
    if isinstance(piece, TextDelta):
        return replace(piece, cached_tokens=0)
    if isinstance(piece, Finished):
        return replace(piece, usage=replace(piece.usage, cached_tokens=0))
    return piece


class PromptToken(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


# By token id: the prompt's token, then its alternatives. Null for the first token.
PromptLogprobsReply = list[dict[str, PromptToken] | None]


def prompt_logprobs_reply(entries: Sequence[TokenLogprob | None], tokenizer: Tokenizer) -> PromptLogprobsReply:
    """vLLM's form of `prompt_logprobs`."""
    return [None if entry is None else _tokens(entry, tokenizer) for entry in entries]


def _tokens(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, PromptToken]:
    ranked = [(entry.token_id, entry.logprob, entry.rank)]
    ranked += [(token_id, logprob, place) for place, (token_id, logprob) in enumerate(entry.top, 1)]
    tokens: dict[str, PromptToken] = {}
    for token_id, logprob, rank in ranked:
        named: PromptToken = {
            "logprob": max(logprob, -9999.0),
            "rank": rank,
            "decoded_token": tokenizer.token_text(token_id),
        }
        tokens.setdefault(str(token_id), named)
    return tokens
