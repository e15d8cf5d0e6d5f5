"""`quicksilver generate PROMPT`: continue a text. Statistics go to standard error if it is a terminal."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quicksilver.cli import options
from quicksilver.cli.console import errors
from quicksilver.core import DecoderName

if TYPE_CHECKING:
    from quicksilver.llm.answers import Answer

COUNTS = ("prompt_tokens", "completion_tokens", "forwards", "rounds", "drafted", "accepted")


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads standard input.")],
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    decoder: options.Decoder = DecoderName.VERIFY,
    canvas_len: options.CanvasLen = 8,
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the model's chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text, finish reason, usage.")] = False,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
    adapter: options.Adapters = [],  # noqa: B006
) -> None:
    """Continue a text, or answer it with --chat."""
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = options.open_llm(model, device, weights, threads, adapter)
    params = options.decode_params(max_tokens, temperature, seed, decoder, canvas_len)
    params = options.for_model(params, llm.engine.info)
    start = time.perf_counter()
    answer = llm.chat(text, params) if chat else llm.generate(text, params)
    seconds = time.perf_counter() - start
    typer.echo(json.dumps(_plain(answer, seconds), ensure_ascii=False) if as_json else answer.text)
    if sys.stderr.isatty():
        usage = answer.usage
        per_forward = usage.completion_tokens / max(usage.forwards, 1)
        errors.print(
            f"[dim]{usage.completion_tokens} tokens, {usage.forwards} forwards ({per_forward:.2f} per forward), "
            f"{usage.completion_tokens / seconds:.1f} tokens/s, finish reason {answer.finish}[/]"
        )


def _plain(answer: Answer, seconds: float) -> dict[str, Any]:
    usage = {name: getattr(answer.usage, name) for name in COUNTS}
    return {"text": answer.text, "finish_reason": answer.finish, "usage": usage, "seconds": round(seconds, 3)}
