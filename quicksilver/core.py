"""The nouns every room shares, and the Protocols between them.

Lives on the ground floor: standard library only, no work at import. Anything that crosses a process or a room is
defined here and nowhere else; wire names (OpenAI's, Mercury's) belong to `server/wire`. All records are immutable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable


def setting(default: object, help_text: str) -> Any:
    """A dataclass field that an operator can set, with a one-line help text."""
    return field(default=default, metadata={"help": help_text})


def help_texts(config: type) -> dict[str, str]:
    """Help texts by field name, for command lines and documentation."""
    return {one.name: one.metadata["help"] for one in fields(config) if "help" in one.metadata}


class FinishReason(StrEnum):
    """Why a request ended. `STOP` is a stop token; stop *strings* are found in `text/` and arrive as an abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class DecoderName(StrEnum):
    """The decoders a request may name. `AR` is `VERIFY` with a canvas of one row."""

    AR = "ar"
    VERIFY = "verify"
    CONFIDENCE = "confidence"
    EDIT = "edit"


class CommitRule(StrEnum):
    """How `confidence` chooses the positions to commit; the rules are defined in `diffusion/unmask.py`."""

    THRESHOLD = "threshold"
    STATIC = "static"
    FACTOR = "factor"
    ENTROPY = "entropy"


@dataclass(frozen=True, slots=True)
class DecoderParams:
    """A decoder and its parameters. A decoder ignores the fields of the others."""

    name: DecoderName = DecoderName.VERIFY
    canvas_len: int = 16  # tokens predicted together

    # `confidence`; `threshold` also for filling masks in `edit`
    rule: CommitRule = CommitRule.THRESHOLD
    threshold: float = 0.9  # confidence above which a masked position is decided
    steps: int = 8  # static rule: forwards per canvas
    factor: float = 1.0  # factor rule
    entropy_bound: float = 0.1  # entropy rule: nats

    # `edit`
    edit_threshold: float = 0.9  # confidence above which a filled position is overwritten
    edit_passes: int = 16  # forwards allowed after the last mask is filled
    stutter_penalty: float = 2.0  # subtracted from the logit of the left neighbour's token, against doubled words


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """How one request is decoded. Engine terms: ids and numbers, never strings."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    """A committed stop id ends the request and is not part of the answer."""
    banned_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    """None: none; 0: of the chosen token; n: also the n likeliest."""
    decoder: DecoderParams = DecoderParams()


@dataclass(frozen=True, slots=True)
class ThinkBudget:
    """A bound on the reasoning channel: at `max_tokens` the engine writes `close_ids`, so the answer has room."""

    close_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A grammar as text, checked before it is sent; the engine's factory turns it into a TokenConstraint."""

    grammar: str = ""
    """llguidance's serialised grammar."""
    needs_validation: bool = False
    """Whether the grammar admits more than was asked for, so that only the final check makes the answer valid."""
    lead: str = ""
    """Instead of a grammar: what the answer must begin with, and anything may follow."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to make. `n` answers are `n` requests with seeds of their own, sharing the prompt's pages."""

    id: str
    prompt_ids: tuple[int, ...]
    params: DecodeParams = DecodeParams()
    tenant: str = ""
    """Salts the prefix cache: pages are never shared between tenants."""
    constraint: ConstraintSpec | None = None
    think: ThinkBudget | None = None
    wants_frames: bool = False


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Likelihoods of several continuations of one prompt (labels, multiple choice)."""

    id: str
    prompt_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a committed token, and the likeliest alternatives at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost, exact to the token. `forwards` counts the forwards in which it had rows."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    """Drafts of `verify`, each with the verification behind it, however long their canvases were."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural-log probabilities, one tuple per continuation, one number per token of it."""

    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage = Usage()
    """`completion_tokens` counts the tokens of all continuations; `rows` and `forwards` what they took."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed tokens, in order; they never change again. Only the last one carries `finish`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    num_forced: int = 0
    """How many of `token_ids` a grammar or budget determined, without a forward."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    """So far: whoever stops reading here knows what it cost."""
    error: str | None = None
    """`code: message` when `finish` is ERROR."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The canvas as it stands after one step: what a `diffusing` stream shows behind the committed text."""

    request_id: str
    step: int
    token_ids: tuple[int, ...]
    """The current best guess at every canvas position, decided or not."""
    is_decided: tuple[bool, ...]
    confidence: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per position the likeliest tokens with their log-probabilities; empty unless the request asks for `logprobs`."""


Event = Delta | Frame


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine serves: fixed while it lives."""

    model: str
    family: str
    vocab_size: int
    context_len: int
    max_canvas_len: int
    device: str
    dtype: str
    num_pages: int
    page_size: int
    weight_bytes: int
    fingerprint: str
    """Changes with weights, adapters, quantisation and kernel set."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges at one moment; counters only grow while the worker lives."""

    running: int = 0
    waiting: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    requests: int = 0
    steps: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    aborts: int = 0
    failures: int = 0
    restarts: int = 0


class EngineState(StrEnum):
    """`UNRESPONSIVE`: the worker missed its heartbeats. It recovers, or is killed and replaced."""

    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What is known about the engine without asking it."""

    state: EngineState
    silent_s: float = 0.0
    """Seconds since the last message of the worker."""
    step_s: float = 0.0
    """Duration of the step that was running at the last heartbeat; 0 if the engine was idle."""
    stats: EngineStats = EngineStats()
    """As of the last heartbeat."""


@runtime_checkable
class EngineClient(Protocol):
    """The engine as everyone above it sees it, in this process or behind a socket."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def is_ready(self) -> bool:
        """False while a worker starts or restarts; `stream` then raises EngineUnavailable at once."""

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Events of one request. Deltas are never dropped; of Frames a slow reader gets the newest only.

        Closing the generator aborts the request within one step. A request that fails alone ends with a Delta whose
        finish is ERROR; a dead engine raises EngineDied here.
        """

    async def score(self, request: ScoreRequest) -> Scores: ...

    async def stats(self) -> EngineStats:
        """Current figures. Answers within 3 s; raises EngineUnavailable if the engine does not."""

    def health(self) -> EngineHealth:
        """State and last known figures, without waiting."""

    async def close(self) -> None: ...


class TokenConstraint(Protocol):
    """A left-to-right automaton standing at the committed frontier of one request.

    Bitmasks are int32 words, least significant bit first, `ceil(vocab_size / 32)` words a row, written to `out`.
    Every method but `advance` leaves the state as it was. A method that raises fails its own request only.
    """

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Tokens that must come next, or behind `ahead`, whatever the model says; often empty."""

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        """Row 0 = what may come now, row i = after ahead[:i], up to the first illegal token. Returns rows written."""

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may come next, in this order. A stop token is legal where the text may end."""

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        """A canvas behind the frontier, None for holes: from the first illegal token of its leading run on everything
        becomes a hole, and what must follow that run is filled in."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit `tokens`; they must be legal."""

    def can_stop(self) -> bool:
        """Whether the text so far is complete."""

    def must_stop(self) -> bool:
        """Whether nothing but the end may follow."""

    def closing(self, room: int) -> list[int] | None:
        """When only `room` tokens are left: the tokens of a shortest completion if they must start now, else None."""

    def is_over(self) -> bool:
        """Whether anything may come from here on, so that there is nothing left to ask."""
