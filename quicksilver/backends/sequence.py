"""One request in flight: what is committed, what is cached, what is on the canvas. No torch work, no policy.

Invariant: KV of `tokens[:kv_len]` is in `pages` and final; `tokens` only grows; the last token is never cached between
forwards, because its row is the one that proposes the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from quicksilver.core import DecoderName, Request, TokenConstraint, TokenLogprob, Usage
from quicksilver.diffusion.decoder import Canvas, Decoder, Tail


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable on purpose: the engine's working state of one request."""

    request: Request
    decoder: Decoder
    constraint: TokenConstraint | None = None
    tokens: list[int] = field(default_factory=list)
    kv_len: int = 0
    pages: list[int] = field(default_factory=list)
    page_ids: tuple[list[int], Tensor] | None = None
    """`pages` as a tensor, and the list it was made of."""
    canvas: Canvas | None = None
    hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    cached_tokens: int = 0
    has_run: bool = False
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    logprob_at: dict[int, TokenLogprob] = field(default_factory=dict)
    is_thinking: bool = False
    excess_s: float = 0.0
    """Seconds that its grammar took of its last step beyond what it may have for nothing."""
    canvas_limit: int = 0
    """The longest canvas that the load allows where its length changes no token; 0 is any."""
    is_draft_free: bool = False
    """Whether the draft on the canvas came along with a verification, so that dropping it wastes no forward."""

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt_ids)
        self.is_thinking = self.request.think is not None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def room(self) -> int:
        """Answer tokens that may still come."""
        return self.request.params.max_new_tokens - (len(self.tokens) - self.num_prompt)

    def tail(self) -> Tail:
        """The rows after the context; opens a canvas where none is under way, or one that no longer suits the load."""
        is_bound = self.canvas_limit and self.request.params.decoder.name is DecoderName.VERIFY
        longest = max(min(self.room, self.canvas_limit) if is_bound else self.room, 1)
        if self.canvas is None or (is_bound and self._is_unsuited(self.canvas, longest)):
            self.canvas = self.decoder.open(longest)
        return self.decoder.tail(self.canvas)

    @property
    def is_verifying(self) -> bool:
        """Whether a draft that cost a forward waits to be verified: it stays, whatever the load allows by now."""
        return self.canvas is not None and self.canvas.is_draft and not self.is_draft_free

    def _is_unsuited(self, canvas: Canvas, longest: int) -> bool:
        """Too long and not run yet; or a draft that cost nothing, where longer canvases pay now."""
        if self.is_draft_free and canvas.is_draft:
            return len(canvas.token_ids) + 1 < min(longest, self.request.params.decoder.canvas_len)
        return canvas.is_fresh and len(canvas.token_ids) > longest

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.tokens) - self.num_prompt,
            forwards=self.forwards,
            rows=self.rows,
            drafted=self.drafted,
            accepted=self.accepted,
            rounds=self.rounds,
        )
