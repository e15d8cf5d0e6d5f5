"""`quicksilver bench`: tokens per second and tokens per forward of each decoder, as ratios to plain AR decoding."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from quicksilver.cli import options
from quicksilver.cli.console import errors, out
from quicksilver.core import DecodeParams, DecoderName, DecoderParams

if TYPE_CHECKING:
    from quicksilver.llm import LLM

PROMPTS = (
    "Write a Python function that reverses a string.",
    "What is the capital of France? Explain briefly.",
    'Reply with a JSON object that has the keys "name" and "age".',
)


def bench(
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 64,
    canvas_len: options.CanvasLen = 8,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Commit threshold of the confidence decoder.")] = 0.9,
) -> None:
    """Measure every decoder on a few prompts. Compare the ratios: absolute figures vary from run to run."""
    llm = options.open_llm(model, device, weights, threads)
    table = Table("decoder", "tokens/s", "x AR", "tokens/forward", "forwards/s")
    base = 0.0
    for name in (DecoderName.AR, DecoderName.VERIFY, DecoderName.CONFIDENCE, DecoderName.EDIT):
        decoder_params = replace(DecoderParams(), name=name, canvas_len=canvas_len, threshold=threshold)
        with errors.status(f"running {name}"):
            tokens, forwards, seconds = measure(llm, DecodeParams(max_new_tokens=max_tokens, decoder=decoder_params))
        rate = tokens / seconds
        base = base or rate
        cells = (rate, rate / base, tokens / forwards, forwards / seconds)
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    out.print(
        f"{model} on {llm.engine.info.device}, {llm.engine.info.dtype}, canvas {canvas_len}",
        markup=False,
        soft_wrap=True,
    )
    out.print(table)


def measure(llm: LLM, params: DecodeParams) -> tuple[int, int, float]:
    """Return tokens, forwards and seconds over all prompts, after one warm-up answer."""
    llm.chat(PROMPTS[0], replace(params, max_new_tokens=8))
    tokens, forwards, start = 0, 0, time.perf_counter()
    for prompt in PROMPTS:
        usage = llm.chat(prompt, params).usage
        tokens, forwards = tokens + usage.completion_tokens, forwards + usage.forwards
    return tokens, forwards, time.perf_counter() - start
