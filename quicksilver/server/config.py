"""ServerConfig: settings of the listeners, fixed while the process runs.

Bounds on request fields are part of the wire format and are in `http/fields.py`; these are bounds of the transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quicksilver.errors import InvalidRequest

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")

CHAT_ALIASES = ("mercury-2", "mercury-2.5", "mercury", "mercury-coder", "mercury-coder-small")
CODE_ALIASES = (
    "mercury-edit-2",
    "mercury-edit",
    "mercury-coder",
    "mercury-coder-small",
    "mercury-coder-small-beta",
    "mercury-editor-mini-experimental",
    "mercury-editor-small-experimental",
)


@dataclass(frozen=True, slots=True)
class Pricing:
    """Decimal strings per token, as model lists print them."""

    prompt: str = "0"
    completion: str = "0"
    input_cache_reads: str = "0"
    input_cache_writes: str = "0"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The served model as the model lists show it."""

    id: str = "nano"
    name: str = "quicksilver nano"
    description: str = ""
    # Seconds since the epoch; 0 prints the server's start.
    created: int = 0
    owned_by: str = "quicksilver"
    # Tokens an answer may have when the request names no limit.
    max_output_len: int = 8192
    pricing: Pricing = Pricing()
    features: tuple[str, ...] = ("tools", "json_mode", "structured_outputs", "reasoning", "logprobs")
    # ISO 3166 code for `datacenters`; empty prints none.
    country_code: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds after which a slow peer is disconnected."""

    # For a whole request head: from the connection, or on a used connection from the first byte.
    header_read_s: float = 10.0
    # Longest pause between two pieces of a request body.
    body_idle_s: float = 15.0
    # A body must arrive at `body_bytes_per_s`, counted from this many seconds after its start.
    body_grace_s: float = 10.0
    body_bytes_per_s: float = 4096.0
    # Longest time for a whole body.
    body_read_s: float = 120.0
    # A peer that has not read the last reply of a connection may read it for this long, while its input is discarded.
    linger_s: float = 5.0
    # A client that reads nothing for this long is disconnected and its request aborted.
    write_stall_s: float = 60.0
    # An idle connection waits this long for its next request.
    keep_alive_s: float = 75.0
    # Open replies may run this long after SIGTERM.
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Built once by the caller; never mutated."""

    host: str = "127.0.0.1"
    port: int = 8480
    admin_host: str = "127.0.0.1"
    # Port of the listener with `/metrics` and the accounts; 0 takes a free port.
    admin_port: int = 8481
    # Host names this server answers to, without port; `*` answers to all.
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    # Web origins that may call from a browser, besides this server's own; also allowed by CORS.
    origins: tuple[str, ...] = ()
    # Listen beyond loopback without keys.
    allow_anonymous: bool = False
    body_bytes: int = 8 * 2**20
    # Largest body of a route that needs no key.
    public_body_bytes: int = 4 * 2**10
    # Largest request head, largest trailers, and most input that is kept while a request is answered.
    header_bytes: int = 32 * 2**10
    # Most input that is discarded so that the last reply of a connection is delivered.
    linger_bytes: int = 32 * 2**20
    num_headers: int = 100
    # Connections open on one listener; one more displaces an idle one without a key, or is a 503. Less if the process
    # may not open so many files.
    max_connections: int = 8192
    # Requests in flight, all kinds together; one more is a 503.
    max_open: int = 4096
    # Requests in flight to routes that need no key.
    max_open_public: int = 128
    # Requests of one key that wait while it has its most requests in flight, and how long one waits before it is a 429.
    max_in_flight_waiting: int = 512
    in_flight_wait_s: float = 30.0
    # Seconds that a request may wait in the engine before it starts; one that would wait longer is a 503. 0: no limit.
    start_within_s: float = 120.0
    # A stream without events for this long sends an SSE comment.
    keep_alive_comment_s: float = 15.0
    # Most `diffusing` snapshots sent on one stream in a second.
    frames_per_s: float = 30.0
    # Temperature of chat requests that name none.
    temperature: float = 0.75
    # Effort of chat requests that name none; None: no reasoning.
    reasoning_effort: str | None = None
    # Log-probability below which a next edit is not offered, for requests without `min_logprob`; None: all are offered.
    edit_min_logprob: float | None = None
    timeouts: Timeouts = Timeouts()
    card: ModelCard = ModelCard()
    chat_aliases: tuple[str, ...] = CHAT_ALIASES
    code_aliases: tuple[str, ...] = CODE_ALIASES
    # Responses, conversations, chat completions, files and batches may be stored. Without accounts they are in a file
    # of `home`.
    stores: bool = True
    # Bytes that one project may store. Beyond them its oldest responses and chat completions are deleted.
    stored_bytes: int = 256 * 2**20
    # Responses and chat completions are deleted after this many days.
    stored_days: int = 30
    # Largest uploaded file.
    file_bytes: int = 64 * 2**20
    # Lines of batches that are generated at the same time.
    batch_lines: int = 8
    # Address of the OpenTelemetry collector; empty: requests are not traced.
    otlp_endpoint: str = ""
    # Fine-tuning jobs are accepted: a trainer process works on them.
    tunes: bool = True
    # Fine-tuning jobs of one project that have not ended.
    tuning_jobs: int = 8
    # Where feedback is kept, and stored objects without accounts. `serve` sets it to QUICKSILVER_HOME or
    # ~/.cache/quicksilver.
    home: Path = field(default_factory=lambda: Path.home() / ".quicksilver")

    def __post_init__(self) -> None:
        if self.edit_min_logprob is not None and not self.edit_min_logprob <= 0:
            raise InvalidRequest("edit_min_logprob: a log-probability is at most 0", param="edit_min_logprob")
