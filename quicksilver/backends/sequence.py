"""The working state of one request: committed tokens, cached KV, canvas and counters.

Invariants: the KV of `tokens[:kv_len]` is final and stored in `pages`. Between forwards the last token is never cached,
because its row predicts the next token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from quicksilver.core import DecoderName, Request, TokenConstraint, TokenLogprob, Usage
from quicksilver.diffusion.decoder import Canvas, Decoder, Tail


@dataclass(slots=True, eq=False)
class Sequence:
    """Changed by the engine after every forward. A backend only reads it, except for the cached `page_ids`."""

    request: Request
    decoder: Decoder
    constraint: TokenConstraint | None = None
    canvas: Canvas | None = None
    tokens: list[int] = field(default_factory=list)  # prompt and answer so far

    # KV cache
    kv_len: int = 0
    pages: list[int] = field(default_factory=list)
    page_ids: tuple[list[int], Tensor] | None = None  # the list `pages`, and a tensor of it for the backend
    hashes: list[bytes] = field(default_factory=list)  # prefix hashes of full pages
    num_published: int = 0  # pages that other sequences can share

    # Scheduling
    has_run: bool = False
    num_overtaken: int = 0  # requests that were admitted although they came later
    canvas_limit: int = 0  # longest canvas that the load allows where the length changes no token; 0 is no limit
    overrun_s: float = 0.0  # seconds of the last step that the grammar used beyond its allowance

    # Results
    is_thinking: bool = False
    logprob_at: dict[int, TokenLogprob] = field(default_factory=dict)  # by position
    scored: list[float] = field(default_factory=list)  # log-probabilities of the scoring passes that are done

    # Usage
    cached_tokens: int = 0
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0

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
        """Answer tokens that are left."""
        return self.request.params.max_new_tokens - (len(self.tokens) - self.num_prompt)

    @property
    def is_prefilling(self) -> bool:
        """Whether more tokens are uncached than a decoding sequence has."""
        return len(self.tokens) - self.kv_len > self.request.params.decoder.canvas_len + 1

    @property
    def is_verifying(self) -> bool:
        """Whether the canvas is a draft: it is verified whatever the load allows by now."""
        return self.canvas is not None and self.canvas.is_draft

    @property
    def tail(self) -> Tail:
        """The rows after the context in the next forward. A canvas must be open."""
        assert self.canvas is not None
        return self.decoder.tail(self.canvas)

    def open_canvas(self) -> None:
        """Opens a canvas if there is none, or if `canvas_limit` is below the length of one that has not run yet."""
        is_limited = self.canvas_limit and self.request.params.decoder.name is DecoderName.VERIFY
        longest = max(min(self.room, self.canvas_limit) if is_limited else self.room, 1)
        canvas = self.canvas
        if canvas is None or (is_limited and canvas.is_fresh and len(canvas.token_ids) > longest):
            self.canvas = self.decoder.open(longest)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.scored) or len(self.tokens) - self.num_prompt,
            forwards=self.forwards,
            rows=self.rows,
            drafted=self.drafted,
            accepted=self.accepted,
            rounds=self.rounds,
        )
