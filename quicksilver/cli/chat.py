"""`quicksilver chat`: a conversation in the terminal, where each answer resolves out of its canvas in place.

Committed text stands in full ink; behind it the canvas, shaded by confidence. A terminal that cannot redraw, or a pipe,
gets the committed text as it comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from quicksilver.cli import options
from quicksilver.cli.console import out
from quicksilver.core import DecodeParams, DecoderName, Frame
from quicksilver.text.chat import Message

if TYPE_CHECKING:
    from quicksilver.llm import LLM, Piece

_MASK_GLYPH = "░"
_SHADES = ("grey23", "grey35", "grey50", "grey66", "grey82")


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    decoder: options.Decoder = DecoderName.VERIFY,
    canvas_len: options.CanvasLen = 8,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
) -> None:
    """Talk to a model in the terminal. Ctrl-D ends, /new starts over."""
    with out.status(f"loading {model}"):
        llm = options.open_llm(model, device, weights, threads)
    out.print(f"[bold]{model}[/] on {llm.engine.info.device}. Ctrl-D ends, /new starts over.")
    params = options.decode_params(max_tokens, temperature, seed, decoder, canvas_len)
    turns: list[Message] = []
    for line in _lines():
        if line == "/new":
            turns = []
            continue
        turns.append(Message("user", line))
        turns.append(Message("assistant", answer(llm, turns, params)))


def _lines() -> Iterator[str]:
    while True:
        try:
            line = out.input("[bold cyan]>[/] ").strip()
        except EOFError:
            out.print()
            return
        if line:
            yield line


def answer(llm: LLM, turns: list[Message], params: DecodeParams) -> str:
    """Show one answer resolving; returns its text."""
    prompt = llm.chat_prompt(turns)
    if out.is_terminal and not out.is_dumb_terminal:
        return _live(llm, llm.frames(prompt, params))
    return _plain(llm.stream(prompt, params))


def _plain(pieces: Iterator[Piece]) -> str:
    text = ""
    for piece in pieces:
        text += piece.text
        out.print(piece.text, end="", markup=False, highlight=False)
    out.print()
    return text


def _live(llm: LLM, pieces: Iterator[Piece]) -> str:
    text, tokens, forwards, start = "", 0, 0, time.perf_counter()
    with Live(console=out, refresh_per_second=20, vertical_overflow="visible") as live:
        for piece in pieces:
            text += piece.text
            canvas = canvas_text(llm, piece.frame) if piece.frame else Text()
            if piece.delta is not None:
                tokens += len(piece.delta.token_ids)
                forwards += 1
            rate = f"{tokens} tokens, {tokens / (time.perf_counter() - start):.0f} tokens/s, {forwards} forwards"
            live.update(Group(Text(text) + canvas, Text(rate, style="dim")))
        live.update(Group(Text(text), Text(rate, style="dim")))
    return text


def canvas_text(llm: LLM, frame: Frame) -> Text:
    """The canvas as it stands: guesses shaded by confidence, nothing-known-yet as a block glyph."""
    text = Text()
    for token_id, is_decided, confidence in zip(frame.token_ids, frame.is_decided, frame.confidence, strict=True):
        if confidence == 0:
            text.append(_MASK_GLYPH, style=_SHADES[0])
        else:
            shade = "bold" if is_decided else _SHADES[min(int(confidence * len(_SHADES)), len(_SHADES) - 1)]
            text.append(llm.tokenizer.token_text(token_id), style=shade)
    return text
