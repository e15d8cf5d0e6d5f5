"""Records and Protocols that several packages share: requests, events, engine statistics, the engine client.

Standard library only. Whatever crosses a process or package boundary is defined here, as an immutable record. Field
names of the HTTP API are defined in `server/endpoints`.
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
    """Why a request ended. `STOP` means a stop token.

    Stop strings are detected in the decoded text, outside the engine; the engine then receives an abort.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class DecoderName(StrEnum):
    """Decoding algorithms. `AR` is `VERIFY` with a canvas of one token: plain autoregression."""

    AR = "ar"
    VERIFY = "verify"
    CONFIDENCE = "confidence"
    EDIT = "edit"


class CommitRule(StrEnum):
    """How `confidence` chooses the positions to commit; the rules are defined in `diffusion/unmask.py`."""

    THRESHOLD = "threshold"  # every position whose probability reaches `threshold`, at least one
    STATIC = "static"  # the same number of positions in each of `steps` steps, the most confident first
    FACTOR = "factor"  # the largest n, most confident first, with (n + 1) * (1 - n-th confidence) <= `factor`
    ENTROPY = "entropy"  # positions in order of entropy while their sum stays below `entropy_bound`


@dataclass(frozen=True, slots=True)
class DecoderParams:
    """A decoder and its parameters. A decoder ignores the fields of the others."""

    name: DecoderName = DecoderName.VERIFY
    canvas_len: int = 16  # tokens predicted together

    # Parameters of `confidence`. `edit` also uses `threshold`, to fill masks.
    rule: CommitRule = CommitRule.THRESHOLD
    threshold: float = 0.9  # a masked position is decided if its confidence reaches this value
    steps: int = 8  # static rule: forwards per canvas
    factor: float = 1.0  # factor rule
    entropy_bound: float = 0.1  # entropy rule: nats

    # `edit`
    edit_threshold: float = 0.9  # confidence above which a filled position is overwritten
    edit_passes: int = 16  # forwards allowed after the last mask is filled
    stutter_penalty: float = 2.0  # subtracted from the logit of the left neighbour's token, to avoid repeated words


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """How one request is decoded, in token ids and numbers."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    # 0 keeps every token.
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    # A committed stop token ends the request and is not part of the answer.
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    # None: no log-probabilities; 0: those of the chosen tokens; n: also of the n likeliest tokens.
    logprobs: int | None = None
    decoder: DecoderParams = DecoderParams()


@dataclass(frozen=True, slots=True)
class ThinkBudget:
    """Limit of the reasoning channel: after `max_tokens` the engine commits `close_ids`, and the answer follows."""

    close_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A compiled grammar as text. The engine's constraint factory builds a TokenConstraint from it."""

    # llguidance's serialised grammar.
    grammar: str = ""
    # True if the grammar accepts more than the request allows, so that the finished output must be validated.
    needs_validation: bool = False
    # Instead of a grammar: the answer begins with this text, and anything may follow.
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate. `n` answers are `n` requests with different seeds; they share the prompt's pages."""

    id: str
    prompt_ids: tuple[int, ...]
    params: DecodeParams = DecodeParams()
    # Part of the prefix hash: KV pages are never shared between tenants.
    tenant: str = ""
    constraint: ConstraintSpec | None = None
    think: ThinkBudget | None = None
    # Also emit a Frame after every step.
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
    """Exact counts of one request so far."""

    prompt_tokens: int = 0
    # Prompt tokens whose KV was found in the prefix cache.
    cached_tokens: int = 0
    completion_tokens: int = 0
    # Forwards in which the request had rows, and the number of these rows.
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    # `verify`: drafts with their verifications.
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural-log probabilities, one tuple per continuation, one number per token of it."""

    logprobs: tuple[tuple[float, ...], ...]
    # `completion_tokens` counts the tokens of all continuations, `rows` all rows that they took.
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Delta:
    """Newly committed tokens, in order; they never change again. Only the last Delta of a request has `finish`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    # How many of `token_ids` a grammar or budget determined without a forward.
    num_forced: int = 0
    finish: FinishReason | None = None
    # Counts up to this Delta.
    usage: Usage | None = None
    # `code: message` if `finish` is ERROR.
    error: str | None = None


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
    # Changes with weights, adapters, weight format, matmul mode and backend.
    fingerprint: str


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
    restarts: int = 0


class EngineState(StrEnum):
    """`UNRESPONSIVE`: the worker missed its heartbeats. It recovers, or is killed and replaced."""

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
        finish reason ERROR. If the engine dies, the generator raises EngineDied.
        """

    async def score(self, request: ScoreRequest) -> Scores:
        """Cancelling the call aborts the request."""

    async def stats(self) -> EngineStats:
        """Current figures. Answers within 3 s; raises EngineUnavailable if the engine does not."""

    def health(self) -> EngineHealth:
        """State and last known figures, without waiting."""

    async def close(self) -> None: ...


class TokenConstraint(Protocol):
    """A left-to-right automaton over tokens. Its state is that of one request's committed text.

    Bitmasks are int32 words, least significant bit first, `ceil(vocab_size / 32)` words per row, written to `out`.
    Only `advance` changes the state. If a method raises, only its own request fails.
    """

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
