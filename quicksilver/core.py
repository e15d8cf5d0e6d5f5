"""Records and Protocols that several packages share: requests, events, engine statistics, the engine client.

Standard library only. Whatever crosses a process or package boundary is defined here, as an immutable record. Field
names of the HTTP API are defined in `server/endpoints`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

from quicksilver.adapters import AdapterRef
from quicksilver.dialect import CommitRule as CommitRule
from quicksilver.dialect import DecoderName as DecoderName
from quicksilver.dialect import DecoderParams as DecoderParams


def setting(default: object, help_text: str) -> Any:
    """A dataclass field that an operator can set, with a one-line help text."""
    return field(default=default, metadata={"help": help_text})


def help_texts(config: type) -> dict[str, str]:
    """Help texts by field name, for command lines and documentation."""
    return {one.name: one.metadata["help"] for one in fields(config) if "help" in one.metadata}


class FinishReason(StrEnum):
    """Why a request ended. `STOP` means a stop token.

    Stop strings are detected in the decoded text, outside the engine; the engine then receives an abort.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """How one request is decoded, in token ids and numbers."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps every token
    min_p: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()  # a committed stop token ends the request and is not part of the answer
    banned_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None  # None: no log-probabilities; 0: of the chosen tokens; n: also of the n likeliest
    decoder: DecoderParams = DecoderParams()


@dataclass(frozen=True, slots=True)
class ThinkBudget:
    """Limit of the reasoning channel: after `max_tokens` come `cut_ids`, `close_ids`, and then the answer."""

    close_ids: tuple[int, ...]
    max_tokens: int
    cut_ids: tuple[int, ...] = ()  # a closing line: without it the answer would continue a sentence that was cut off


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A compiled grammar as text. The engine's constraint factory builds a TokenConstraint from it."""

    grammar: str = ""  # llguidance's serialised grammar
    # True if the grammar accepts more than the request allows, so that the finished output must be validated.
    needs_validation: bool = False
    lead: str = ""  # instead of a grammar: the answer begins with this text, and anything may follow
    min_tokens: int = 0  # instead of a grammar: none of `end_ids` occurs before the answer has this many tokens
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a committed token, and the likeliest alternatives at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0  # 1 for the likeliest token; 0 if it was not computed


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact counts of one request so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV was found in the prefix cache
    completion_tokens: int = 0
    # Forwards in which the request had rows, and the number of these rows.
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    # `verify`: drafts with their verifications.
    rounds: int = 0
    # Tokens of `Request.prediction`, and how many of them were accepted as drafts.
    prediction_tokens: int = 0
    predicted: int = 0
    # `verify`, at the end: entry i is the number of drafts of which i tokens were accepted.
    acceptance: tuple[int, ...] = ()
    migrated: int = 0  # how often the request was continued in another engine worker
    queued_s: float = field(default=0.0, compare=False)  # seconds from the arrival in the engine to the first forward
    engine_s: float = field(default=0.0, compare=False)  # seconds from the arrival in the engine to these counts


@dataclass(frozen=True, slots=True)
class CanvasState:
    """A canvas between two forwards, one entry per position."""

    token_ids: tuple[int, ...]
    is_masked: tuple[bool, ...]
    confidence: tuple[float, ...]
    logprobs: tuple[TokenLogprob | None, ...]  # None where no log-probability is kept
    step: int
    num_passes: int
    num_entering: int = 0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an interrupted request continues: the state after its last Delta, or its beginning if there was none."""

    token_ids: tuple[int, ...] = ()  # all of the answer so far
    # None where the text does not depend on it: a new canvas is opened.
    canvas: CanvasState | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate. `n` answers are `n` requests with different seeds; they share the prompt's pages."""

    id: str
    prompt_ids: tuple[int, ...]
    params: DecodeParams = DecodeParams()
    tenant: str = ""  # part of the prefix hash: KV pages are never shared between tenants
    constraint: ConstraintSpec | None = None
    think: ThinkBudget | None = None
    wants_frames: bool = False  # also emit a Frame after every step
    # Text that the answer is expected to repeat: `verify` drafts from it. It changes the rounds, never the tokens.
    prediction: tuple[int, ...] = ()
    resume: ResumePoint | None = None  # continue an answer that another worker began: same prompt, parameters, seed
    runs_alone: bool = False  # no other request has rows in its forwards until the first Delta of a forward
    adapter: AdapterRef | None = None  # applied to all its rows; None: the model as it is
    is_batch: bool = False  # admitted after requests that are not
    start_within_s: float = 0.0  # refused if it cannot start within this time; 0 sets no limit


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Likelihoods of several continuations of one prompt (labels, multiple choice)."""

    id: str
    prompt_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    tenant: str = ""
    # If not empty: for each continuation the tokens whose probabilities right after it are returned, instead of the
    # probabilities of its own tokens.
    next_tokens: tuple[tuple[int, ...], ...] = ()
    # Not None: also return ranks, and this many of the likeliest tokens of each position.
    num_top: int | None = None
    # No other request has rows in its forwards.
    runs_alone: bool = False
    adapter: AdapterRef | None = None  # as in `Request`
    # An engine accepted it before and was lost: it is not refused because the queue is full.
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural-log probabilities, one tuple per continuation, one number per token of it."""

    logprobs: tuple[tuple[float, ...], ...]
    # `completion_tokens` counts the tokens of all continuations, `rows` all rows that they took.
    usage: Usage = Usage()
    # The same with ranks and alternatives, if the request asks for them.
    details: tuple[tuple[TokenLogprob, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed tokens, in order; they never change again. Only the last Delta of a request has `finish`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    # One per token and, after the last token of an answer that a stop token ended, that of the stop token.
    logprobs: tuple[TokenLogprob, ...] = ()
    # How many of `token_ids` a grammar or budget determined without a forward.
    num_forced: int = 0
    finish: FinishReason | None = None
    usage: Usage | None = None  # up to this Delta
    # `code: message` if `finish` is ERROR.
    error: str | None = None
    # The canvas after this Delta, for a ResumePoint; None where the text does not depend on it.
    canvas: CanvasState | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """The canvas after one step; a `diffusing` stream shows it after the committed text."""

    request_id: str
    step: int
    # The current best guess at every canvas position, decided or not.
    token_ids: tuple[int, ...]
    is_decided: tuple[bool, ...]
    confidence: tuple[float, ...]
    # Per position the likeliest tokens with their log-probabilities; empty unless the request asks for `logprobs`.
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


Event = Delta | Frame


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Constant facts about an engine."""

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
    fingerprint: str  # changes with weights, adapters, number format and backend
    decoders: tuple[DecoderName, ...] = tuple(DecoderName)
    default_decoder: DecoderParams = DecoderParams()
    other_decoders: tuple[DecoderParams, ...] = ()  # parameters of decoders that do not share those of the default
    score_pass_rows: int = 256  # the longest continuation whose next token can be scored
    supports_adapters: bool = False  # whether requests may name an adapter
    warning: str = ""  # what makes every reply approximate; replies carry it


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges. Counters start at 0 with every worker process."""

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
    refused: int = 0  # could not start in time
    restarts: int = 0
    # Requests that were continued in another worker; counted by the client.
    migrations: int = 0


class EngineState(StrEnum):
    """`UNRESPONSIVE`: the worker missed its heartbeats. It recovers, or is killed and replaced. `UNLOADED`: the next
    request loads the model."""

    UNLOADED = "unloaded"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State and figures as of the last heartbeat."""

    state: EngineState
    # Seconds since the last message of the worker.
    silent_s: float = 0.0
    # Duration of the step that was running at the last heartbeat; 0 if the engine was idle.
    step_s: float = 0.0
    stats: EngineStats = EngineStats()


@runtime_checkable
class EngineClient(Protocol):
    """Interface of an engine in this process or in a worker process."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def is_ready(self) -> bool:
        """False while a worker starts or restarts; `stream` then raises EngineUnavailable at once."""

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Events of one request. Deltas are never dropped; a slow reader gets only the newest Frame.

        Closing the generator aborts the request within one step. If only this request fails, its last Delta has the
        finish reason ERROR. If the engine dies, the generator raises EngineDied; a client of a worker process first
        tries to continue the request in the next worker.
        """

    async def score(self, request: ScoreRequest) -> Scores:
        """Cancelling the call aborts the request."""

    async def stats(self) -> EngineStats:
        """Current figures. Answers within 3 s; raises EngineUnavailable if the engine does not."""

    def health(self) -> EngineHealth:
        """State and last known figures, without waiting."""

    async def close(self) -> None: ...


# A constraint, tokens that may follow its text, and the rows for its masks: arguments of `write_masks`.
ConstraintType = TypeVar("ConstraintType")
MaskTask = tuple[ConstraintType, Sequence[int], memoryview]


class MaskGroup(Protocol):
    """Computes the masks of several constraints in one call. Groups are compared by equality."""

    def write_masks(self, tasks: Sequence[MaskTask[Any]]) -> list[int]:
        """As `write_masks` of each constraint, all of which have this group. If it raises, no row can be used."""


class TokenConstraint(Protocol):
    """A left-to-right automaton over tokens. Its state is that of one request's committed text.

    Bitmasks are int32 words, least significant bit first, `ceil(vocab_size / 32)` words per row, written to `out`.
    Only `advance` changes the state. If a method raises, only its own request fails.
    """

    @property
    def group(self) -> MaskGroup | None:
        """Constraints of one group can compute their masks together; None if this one computes its own."""

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Tokens that must come next, or after `ahead`, whatever the model predicts; often empty."""

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        """Row 0 holds the legal tokens now, row i those after ahead[:i], up to the first illegal token. Returns the
        number of rows written."""

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may come next, in this order. A stop token is legal where the text may end."""

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        """Checks the canvas after the committed text, with None for masked positions. Everything from the first
        illegal token of the leading decided run on is masked, and tokens that must follow that run are filled in."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Commits `tokens`, which must be legal."""

    def can_stop(self) -> bool:
        """Whether the text so far is complete."""

    def must_stop(self) -> bool:
        """Whether only the end may follow."""

    def closing(self, room: int) -> list[int] | None:
        """The tokens of a shortest completion if they must start now to fit `room` tokens, else None."""

    def is_over(self) -> bool:
        """Whether every token is legal from here on, so that the constraint can be dropped."""
