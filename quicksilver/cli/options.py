"""Options that several commands share, and the objects built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, EngineInfo, help_texts
from quicksilver.engine.config import EngineConfig
from quicksilver.hub.resolve import default_home

if TYPE_CHECKING:
    from quicksilver.accounts.config import AccountsConfig
    from quicksilver.llm import LLM

DEFAULT_MODEL = "nano"

Model = Annotated[
    str, typer.Option("--model", "-m", envvar="QUICKSILVER_MODEL", help="Catalogue name, path or hub name.")
]
Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        "-m",
        envvar="QUICKSILVER_MODEL",
        help="Catalogue name, path, or owner/name[@revision] of the hub. Several: repeat it; the first is the default.",
        show_default=DEFAULT_MODEL,
    ),
]
ServedName = Annotated[
    list[str], typer.Option(envvar="QUICKSILVER_SERVED_NAME", help="NAME=MODEL: a further name of a served model.")
]
Companion = Annotated[
    bool, typer.Option(envvar="QUICKSILVER_COMPANION", help="Serve the code model that the catalogue adds to a model.")
]
Pin = Annotated[list[str], typer.Option(envvar="QUICKSILVER_PIN", help="Model that is never unloaded.")]
IdleUnload = Annotated[
    float,
    typer.Option(
        envvar="QUICKSILVER_IDLE_UNLOAD_S", min=0.0, help="Unload a model after this time without requests; 0: never."
    ),
]
ApiProcesses = Annotated[
    int,
    typer.Option(
        envvar="QUICKSILVER_API_PROCESSES",
        min=0,
        max=64,
        help="Processes that serve the API; 0: one per four cores, with a GPU one per two.",
    ),
]
Cluster = Annotated[
    Path | None,
    typer.Option(
        envvar="QUICKSILVER_CLUSTER", help="Use the engines of this cluster file instead of workers of this server."
    ),
]
Host = Annotated[str, typer.Option(envvar="QUICKSILVER_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(envvar="QUICKSILVER_PORT", min=0, max=65535, help="Port of the API.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        envvar="QUICKSILVER_ADMIN_PORT",
        min=0,
        max=65535,
        help="Port for metrics and accounts, on loopback unless --admin-host is given.",
        show_default="the port after --port",
    ),
]
WithAccounts = Annotated[bool, typer.Option(envvar="QUICKSILVER_ACCOUNTS", help="Require API keys.")]
AdminHost = Annotated[
    str,
    typer.Option(envvar="QUICKSILVER_ADMIN_HOST", help="Address of the port for metrics and accounts."),
]
AllowAnonymous = Annotated[
    bool, typer.Option(envvar="QUICKSILVER_ALLOW_ANONYMOUS", help="Allow a public address without API keys.")
]
StoreObjects = Annotated[
    bool,
    typer.Option(
        "--store/--no-store",
        envvar="QUICKSILVER_STORE",
        help="Store responses, conversations, files and batches where a request asks for it.",
    ),
]
FineTuning = Annotated[
    bool,
    typer.Option("--fine-tuning/--no-fine-tuning", envvar="QUICKSILVER_FINE_TUNING", help="Accept fine-tuning jobs."),
]
AllowHost = Annotated[
    list[str], typer.Option(envvar="QUICKSILVER_ALLOW_HOST", help="Accepted Host header besides loopback names.")
]
AllowOrigin = Annotated[
    list[str], typer.Option(envvar="QUICKSILVER_ALLOW_ORIGIN", help="Web origin that may call from a browser.")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="QUICKSILVER_LOG_LEVEL", help="Least severity of log lines."),
]
LogFormat = Annotated[
    Literal["auto", "json", "text"],
    typer.Option(envvar="QUICKSILVER_LOG_FORMAT", help="Form of log lines; auto: text on a terminal, else JSON."),
]
OtlpEndpoint = Annotated[
    str,
    typer.Option(
        envvar="QUICKSILVER_OTLP_ENDPOINT",
        help="OpenTelemetry collector that gets traces over OTLP/HTTP, such as http://127.0.0.1:4318; empty: none.",
    ),
]
Adapters = Annotated[
    list[Path],
    typer.Option(
        "--adapter",
        envvar="QUICKSILVER_ADAPTER",
        help="Adapter file in place of the model's own, or NAME=PATH to serve it as MODEL:NAME; may be repeated.",
    ),
]
Device = Annotated[str, typer.Option(envvar="QUICKSILVER_DEVICE", help="cpu, cuda or auto.")]
Weights = Annotated[
    Literal["auto", "float32", "bfloat16", "int8", "fp8", "int4"],
    typer.Option(envvar="QUICKSILVER_WEIGHTS", help="Number format; int8 on a CPU only, fp8 and int4 on a GPU only."),
]
Matmul = Annotated[
    Literal["fastest", "batch_invariant"],
    typer.Option(envvar="QUICKSILVER_MATMUL", help="batch_invariant: a request's numbers do not depend on its batch."),
]
Threads = Annotated[int, typer.Option(envvar="QUICKSILVER_THREADS", help="CPU threads; 0 for all.")]
Yarn = Annotated[
    float, typer.Option(envvar="QUICKSILVER_YARN", min=1.0, help="Extend the context by this factor with YaRN.")
]
SystemPrompt = Annotated[
    str | None,
    typer.Option(
        envvar="QUICKSILVER_SYSTEM_PROMPT",
        help='System message of chats that have none; "" adds none.',
        show_default="nano's own; none for a checkpoint with a chat template",
    ),
]


def _engine_option(name: str) -> Any:
    """An option for a field of EngineConfig, with the help text of the field."""
    help_text = help_texts(EngineConfig)[name]
    return typer.Option(envvar=f"QUICKSILVER_{name.upper()}", help=help_text, rich_help_panel="Engine")


ENGINE = EngineConfig()
ContextLen = Annotated[int, _engine_option("context_len")]
MaxRunning = Annotated[int, _engine_option("max_running")]
MaxWaiting = Annotated[int, _engine_option("max_waiting")]
MaxRows = Annotated[int, _engine_option("max_rows")]
KvBytes = Annotated[int, _engine_option("kv_bytes")]
TreeRows = Annotated[int, _engine_option("tree_rows")]
CudaGraphs = Annotated[bool, _engine_option("cuda_graphs")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer.")]
Decoder = Annotated[DecoderName, typer.Option(help="Decoding algorithm.")]
CanvasLen = Annotated[int, typer.Option(min=1, help="Canvas length: tokens drafted together.")]


DatabaseUrl = Annotated[
    str, typer.Option(envvar="QUICKSILVER_DATABASE_URL", help="Accounts database; default: SQLite in the home folder.")
]


Pepper = Annotated[
    Path | None,
    typer.Option(
        envvar="QUICKSILVER_PEPPER",
        help="Secret file for key hashes; default: beside the SQLite file.",
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="QUICKSILVER_ADMIN_KEY_FILE",
        help="New file for the first admin key, readable by its owner only; without it the key is printed once.",
    ),
]
SignupCredits = Annotated[
    int, typer.Option(envvar="QUICKSILVER_SIGNUP_CREDITS", min=0, help="Credits a new organisation starts with.")
]
DEFAULT_CREDITS = 10_000_000


def accounts_database(
    url: str, pepper: Path | None = None, signup_credits: int = DEFAULT_CREDITS
) -> tuple[str, AccountsConfig]:
    """Return the database URL and the configuration: the first two arguments of every accounts command."""
    from quicksilver.accounts.config import AccountsConfig

    database = url or f"sqlite:///{default_home() / 'accounts.db'}"
    return database, AccountsConfig(pepper_path=pepper, signup_credits=signup_credits)


def open_llm(model: str, device: str, weights: str, threads: int, adapters: Sequence[Path] = ()) -> LLM:
    """Load a model. This imports torch."""
    from quicksilver.engine.load import LoadConfig
    from quicksilver.llm import LLM

    return LLM(model, LoadConfig(device=device, weights=weights, threads=threads), adapters=adapters)


def for_model(params: DecodeParams, info: EngineInfo) -> DecodeParams:
    """A diffusion checkpoint that cannot verify decodes with its own decoder, unless another one is named, and with the
    parameters that it has for the decoder."""
    own, name = info.default_decoder, params.decoder.name
    if DecoderName.VERIFY in info.decoders:
        return params
    if name in (DecoderName.VERIFY, own.name):
        return replace(params, decoder=own)
    return replace(
        params, decoder=replace(own.for_decoder(name, info.other_decoders), canvas_len=params.decoder.canvas_len)
    )


def decode_params(
    max_tokens: int, temperature: float, seed: int, decoder: DecoderName, canvas_len: int
) -> DecodeParams:
    decoder_params = replace(DecoderParams(), name=decoder, canvas_len=canvas_len)
    return DecodeParams(max_new_tokens=max_tokens, temperature=temperature, seed=seed, decoder=decoder_params)
