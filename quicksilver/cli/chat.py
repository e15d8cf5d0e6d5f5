"""`quicksilver chat`: a conversation in the terminal. Each answer is drawn with its canvas while it is decoded.

If the output is a pipe or a terminal that cannot redraw, only committed text is printed, as it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quicksilver.cli import options
from quicksilver.cli.console import out
from quicksilver.cli.live_canvas import CanvasView, show_answer
from quicksilver.core import DecodeParams, DecoderName
from quicksilver.text.chat import Message

if TYPE_CHECKING:
    from quicksilver.llm import LLM, Piece

_HELP = "Ctrl-C stops an answer, /new starts a new conversation, Ctrl-D quits."


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
    """Chat with a model in the terminal. Ctrl-C stops an answer, /new starts a new conversation, Ctrl-D quits."""
    with out.status(f"loading {model}"):
        llm = options.open_llm(model, device, weights, threads)
    out.print(f"[bold]{model}[/] on {llm.engine.info.device}. {_HELP}")
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
    """Show one answer while it is decoded and return its text."""
    prompt = llm.chat_prompt(turns)
    if out.is_terminal and not out.is_dumb_terminal:
        return show_answer(out, llm.frames(prompt, params), CanvasView(llm.tokenizer, params.decoder.canvas_len))
    return _plain(llm.stream(prompt, params))


def _plain(pieces: Iterator[Piece]) -> str:
    text = ""
    for piece in pieces:
        text += piece.text
        out.print(piece.text, end="", markup=False, highlight=False)
    out.print()
    return text
