"""The interface between the engine and a device: `Work` in, `Outcome` out.

The engine keeps a `Sequence` for each request, decides which of them run in a step, and builds one `Work` for each. A
`Backend` runs them in one forward and returns one `Outcome` for each. A device with a `PersistentBatch` also decodes
ahead of the host. `choose.make_backend` builds the backend of a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quicksilver.backends.round_cost import RoundCost
from quicksilver.core import DecoderName, Request, TokenConstraint, TokenLogprob, Usage
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.decoder import Canvas, Decoder, Place, Tail
from quicksilver.diffusion.decoders import noise_step
from quicksilver.diffusion.prediction import Prediction
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.score import Scorer
from quicksilver.model.lowrank import Adapter
from quicksilver.model.row_adapters import RowAdapter


@dataclass(slots=True, eq=False)
class Sequence:
    """The working state of one request: committed tokens, cached KV, canvas and counters. Changed by the engine after
    every forward. A backend only reads it, except for the cached `page_ids`.

    Invariants: `pages` store the KV of `tokens[:kv_len]`, which is final (except with `Dialect.has_stale_prefix`). At
    most `dialect.max_kept(len(tokens))` tokens are cached between forwards. In a causal dialect that excludes the last
    token: its row predicts the next token, so it is computed in the next forward.
    """

    request: Request
    decoder: Decoder
    constraint: TokenConstraint | None = None
    canvas: Canvas | None = None
    dialect: Dialect = AUTOREGRESSIVE
    adapter: RowAdapter | None = None  # LoRA that applies to all rows of the sequence
    adapter_lease: object = None  # as long as it exists, the adapter is not evicted
    tokens: list[int] = field(default_factory=list)  # prompt and answer so far

    # KV cache
    kv_len: int = 0
    pages: list[int] = field(default_factory=list)
    # The list `pages`, and an array and a tensor of it for the backend.
    page_ids: tuple[list[int], npt.NDArray[np.int64], Tensor] | None = None
    hashes: list[bytes] = field(default_factory=list)  # prefix hashes of full pages
    num_published: int = 0  # pages that other sequences can share

    # Scheduling
    has_run: bool = False
    num_overtaken: int = 0  # requests that were admitted although they came later
    slot: int = -1  # in the persistent batch; -1 while the sequence runs in ordinary forwards
    fits_slots: bool | None = None  # whether rounds of slots support its request; None before the first check
    fits_fused_head: bool | None = None  # whether the fused head of CUDA graphs does; None before the first check
    canvas_limit: int = 0  # longest canvas that the load allows where the length changes no token; 0 is no limit
    draft_limit: int = 0  # longest draft from a prediction; 0 is no limit
    overrun_s: float = 0.0  # seconds of the last step that the grammar used beyond its allowance
    runs_alone: bool = False  # no other sequence runs in its forwards; reset when a forward has produced a Delta
    start_by: float = 0.0  # time of the queue's clock after which a request that has not run is refused; 0: never

    # Results
    is_thinking: bool = False
    logprob_at: dict[int, TokenLogprob] = field(default_factory=dict)  # by position
    scored: list[float] = field(default_factory=list)  # log-probabilities of the scoring passes that are done
    scored_details: list[TokenLogprob] = field(default_factory=list)  # the same with ranks and alternatives

    # Drafts from the request's prediction; only for `verify`.
    prediction: Prediction | None = None

    # Usage
    cached_tokens: int = 0
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0  # number of drafts
    predicted: int = 0  # accepted tokens of drafts from the request's prediction
    acceptance: list[int] = field(default_factory=list)  # number of drafts by the number of their accepted tokens
    migrated: int = 0
    created_at: float = field(default_factory=time.perf_counter)
    queued_s: float = 0.0  # from `created_at` to the first forward

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt_ids)
        self.is_thinking = self.request.think is not None
        if self.request.prediction and self.request.params.decoder.name is DecoderName.VERIFY:
            self.prediction = Prediction(self.request.prediction)
        self.runs_alone = self.request.runs_alone

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self.created_at

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
    def final_len(self) -> int:
        """Cached tokens whose KV stays as it is. A scorer with several branches (continuations of one prompt) keeps the
        prompt only, and computes its last token again in each pass."""
        is_branched = isinstance(self.decoder, Scorer) and self.decoder.is_branched
        return min(self.kv_len, self.num_prompt - 1) if is_branched else self.kv_len

    @property
    def is_prefilling(self) -> bool:
        """Whether more tokens are uncached than a decoding sequence has. In a dialect in which rows attend to the whole
        text, a sequence decodes from the first forward on."""
        if self.dialect.is_full:
            return False
        decoding = max(self.request.params.decoder.canvas_len, 2 * self.dialect.block_len) + 1
        return len(self.tokens) - self.kv_len > decoding

    @property
    def is_verifying(self) -> bool:
        """Whether the canvas is a draft. It is verified in the next forward, even if it exceeds `canvas_limit` now."""
        return self.canvas is not None and self.canvas.is_draft

    @property
    def noise_step(self) -> int:
        """The step that keys the sampling noise of the next forward."""
        return noise_step(self.request.params.decoder, self.canvas.step if self.canvas is not None else 0)

    @property
    def tail(self) -> Tail:
        """The rows after the context in the next forward. A canvas must be open."""
        assert self.canvas is not None
        return self.decoder.tail(self.canvas, self.tokens)

    @property
    def text_end(self) -> int:
        """One past the last position whose KV the next forward or the one after it writes. Branches of a scorer write
        none. A canvas must be open."""
        if not self.dialect.keeps_kv:
            return 0
        tail = self.tail
        return len(self.tokens) - tail.num_fixed + (0 if tail.branches else len(tail.token_ids))

    def open_canvas(self) -> None:
        """Opens a canvas if there is none, or if `canvas_limit` is below the length of one that has not run yet."""
        canvas, is_limited = self.canvas, self.canvas_limit and self.request.params.decoder.name is DecoderName.VERIFY
        if canvas is not None and not is_limited:
            return
        longest = max(min(self.room, self.canvas_limit) if is_limited else self.room, 1)
        if canvas is None or (canvas.is_fresh and len(canvas.token_ids) > longest):
            place = Place(len(self.tokens), self.num_prompt)
            self.canvas = self._predicted_draft() or self.decoder.open(longest, place)

    def _predicted_draft(self) -> Canvas | None:
        """The next tokens of the prediction, if the answer follows it and its grammar allows them."""
        if self.prediction is None or self.is_thinking:
            return None
        longest = min(self.room - 1, self.draft_limit) if self.draft_limit else self.room - 1
        draft = self.prediction.draft(self.generated, longest)
        if self.constraint is not None and draft:
            draft = draft[: self.constraint.legal_prefix(draft)]
        return Canvas.predicted(draft) if draft else None

    def count_draft(self, num_accepted: int, num_drafted: int, *, is_predicted: bool) -> None:
        """Counts a verified draft. `num_accepted` are the tokens that became part of the answer, or ended it."""
        self.accepted += num_accepted
        self.acceptance += [0] * (num_accepted + 1 - len(self.acceptance))
        self.acceptance[num_accepted] += 1
        if is_predicted and self.prediction is not None:
            self.prediction.observe(num_accepted, num_drafted)
            self.predicted += num_accepted
            self.drafted += num_drafted
            self.rounds += 1

    def usage(self, *, is_last: bool = False) -> Usage:
        """`acceptance` is part of the last counts only: it would make every message longer."""
        return Usage(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.scored) or len(self.tokens) - self.num_prompt,
            forwards=self.forwards,
            rows=self.rows,
            drafted=self.drafted,
            accepted=self.accepted,
            rounds=self.rounds,
            prediction_tokens=len(self.request.prediction),
            predicted=self.predicted,
            acceptance=tuple(self.acceptance) if is_last else (),
            migrated=self.migrated,
            queued_s=self.queued_s,
            engine_s=self.age_s,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The rows (token positions) of one sequence in one forward: the context tokens `[start, end)` and, if the context
    ends there, the tail, i.e. the rows of its canvas or draft.

    The context may be empty. Committed tokens that are rows of the canvas belong to the tail.
    """

    sequence: Sequence
    start: int
    end: int
    tail: Tail | None

    @property
    def num_rows(self) -> int:
        return self.end - self.start + (len(self.tail.token_ids) if self.tail else 0)

    @property
    def write_end(self) -> int:
        """One past the last position whose KV this work writes."""
        return self.end + (len(self.tail.token_ids) if self.tail is not None and self.tail.is_causal else 0)

    @property
    def num_proposals(self) -> int:
        """Rows whose logits are needed, one per canvas position; none while a prompt is being prefilled."""
        return self.tail.num_proposals if self.tail is not None else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one forward for one sequence."""

    proposal: Proposal
    logprobs: list[TokenLogprob]  # one per proposing row if the request asks for them, else empty
    target_logprobs: Tensor | None = None  # of the tail's targets, in order
    target_details: tuple[TokenLogprob, ...] = ()  # the same with ranks and alternatives, if the tail asks for them


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """KV memory that a backend needs beyond the pages of its requests."""

    scratch_slots: int = 0  # KV slots outside every page, for rows whose KV is copied to a page or dropped
    spare_pages: int = 0  # pages that each sequence should hold beyond its next forward


class AdapterStore(Protocol):
    """Memory of a device for row adapters, of a fixed size. An adapter is placed before it is used, and dropped when no
    request uses it. Any thread may call it."""

    @property
    def num_bytes(self) -> int:
        """Adapters whose bytes sum up to at most this many fit."""

    def place(self, adapter: RowAdapter) -> None: ...

    def drop(self, adapter: RowAdapter) -> None: ...


@dataclass(frozen=True, slots=True)
class RoundTokens:
    """The tokens that one round decided, by slot. Slots that were empty when the round was queued hold any values."""

    token_ids: npt.NDArray[np.int32]  # (slots, most tokens of a round)
    counts: npt.NDArray[np.int64]  # (slots,): how many of them are decided, at least 1
    is_finite: npt.NDArray[np.bool_]  # (slots,): False where the logits were not usable


class PersistentBatch(Protocol):
    """Slots on a device whose decoding rounds run ahead of the host, for hundreds of sequences.

    A sequence occupies a slot from the moment it joins until it leaves. Its last token, position and page table are on
    the device, so a round needs no input from the host. Sequences join and leave between rounds; the other slots are
    not affected. The host reads the tokens of a round while later rounds run. Calls take effect for the rounds that
    are queued after them.
    """

    # Called by a backend's `run` when its forward is queued, before it waits for the result. Rounds that are queued
    # then keep the device busy while the host processes that result.
    before_wait: Callable[[], None]

    @property
    def num_slots(self) -> int: ...

    def accepts(self, sequence: Sequence) -> bool:
        """Whether rounds can serve the request: its sampling options are constant and known to the device."""

    def join(self, slot: int, sequence: Sequence) -> None:
        """The sequence decodes in `slot` from now on. All of its tokens but the last one are cached."""

    def leave(self, slot: int) -> None:
        """The slot is empty from now on."""

    def extend_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """The page table of the slot continues with `pages` at index `first`."""

    def launch(self, num_slots: int) -> None:
        """Queue a round over the first `num_slots` slots."""

    def wait(self) -> RoundTokens:
        """The tokens of the oldest queued round. The arrays are valid until the next call."""

    def discard_rounds(self) -> None:
        """Forget the queued rounds. They still run, before anything that is queued later."""


class Backend(Protocol):
    """A network, its weights and its KV cache on one device."""

    @property
    def round_cost(self) -> RoundCost | None:
        """Measured times of forwards and rounds; None if the backend measures none."""

    @property
    def persistent(self) -> PersistentBatch | None:
        """Slots whose sequences decode ahead of the host; None if the device has none. `run` is independent of them."""

    @property
    def supports_adapters(self) -> bool:
        """Whether sequences may have adapters."""

    @property
    def adapter_store(self) -> AdapterStore | None:
        """Where adapters have to be placed; None if a converted adapter needs no other memory."""

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        """The adapter, which fits the network, in the form that this backend computes. Any thread may call it."""

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward over all rows of `works`. An outcome is None for work without a tail (a chunk of a prompt).

        If it raises, no sequence has changed and the caller may run the works one by one.
        """
