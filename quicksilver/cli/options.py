"""Options that several commands share, and the objects built from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, help_texts
from quicksilver.engine.config import EngineConfig
from quicksilver.hub.resolve import default_home

if TYPE_CHECKING:
    from quicksilver.accounts.config import AccountsConfig
    from quicksilver.llm import LLM

DEFAULT_MODEL = "nano"

Model = Annotated[str, typer.Option("--model", "-m", envvar="QUICKSILVER_MODEL", help="Catalogue name or path.")]
Host = Annotated[str, typer.Option(envvar="QUICKSILVER_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(envvar="QUICKSILVER_PORT", min=0, max=65535, help="Port of the API.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        envvar="QUICKSILVER_ADMIN_PORT",
        min=0,
        max=65535,
        help="Port for metrics and accounts, on loopback.",
        show_default="the port after --port",
    ),
]
WithAccounts = Annotated[bool, typer.Option(envvar="QUICKSILVER_ACCOUNTS", help="Require API keys.")]
AllowAnonymous = Annotated[
    bool, typer.Option(envvar="QUICKSILVER_ALLOW_ANONYMOUS", help="Allow a public address without API keys.")
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
Device = Annotated[str, typer.Option(envvar="QUICKSILVER_DEVICE", help="cpu, cuda or auto.")]
Weights = Annotated[
    Literal["auto", "float32", "bfloat16", "int8", "fp8", "int4"],
    typer.Option(envvar="QUICKSILVER_WEIGHTS", help="Number format: int8 on a CPU, fp8 or int4 on a GPU."),
]
Matmul = Annotated[
    Literal["fastest", "batch_invariant"],
    typer.Option(envvar="QUICKSILVER_MATMUL", help="batch_invariant: a request's numbers do not depend on its batch."),
]
Threads = Annotated[int, typer.Option(envvar="QUICKSILVER_THREADS", help="CPU threads; 0 for all.")]
Yarn = Annotated[
    float, typer.Option(envvar="QUICKSILVER_YARN", min=1.0, help="Extend the context by this factor with YaRN.")
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


def open_llm(model: str, device: str, weights: str, threads: int) -> LLM:
    """Load a model. This imports torch."""
    from quicksilver.engine.load import LoadConfig
    from quicksilver.llm import LLM

    return LLM(model, LoadConfig(device=device, weights=weights, threads=threads))


def decode_params(
    max_tokens: int, temperature: float, seed: int, decoder: DecoderName, canvas_len: int
) -> DecodeParams:
    decoder_params = replace(DecoderParams(), name=decoder, canvas_len=canvas_len)
    return DecodeParams(max_new_tokens=max_tokens, temperature=temperature, seed=seed, decoder=decoder_params)
