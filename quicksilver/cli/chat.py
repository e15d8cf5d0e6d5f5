"""`quicksilver chat`: a conversation in the terminal, with a model in this process or with a running server.

Each answer of a model in this process is drawn with its canvas while it is decoded. If the output is a pipe or a
terminal that cannot redraw, and with `--url`, only committed text is printed, as it is committed.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer
from rich.markup import escape

from quicksilver.cli import options
from quicksilver.cli.console import out
from quicksilver.cli.live_canvas import CanvasView, show_answer
from quicksilver.cli.remote_chat import RemoteModel
from quicksilver.core import DecodeParams, DecoderName
from quicksilver.text.conversation import Message

if TYPE_CHECKING:
    from quicksilver.llm import LLM

COMMANDS = {
    "/help": "show this list",
    "/new": "start a new conversation",
    "/system TEXT": "start a new conversation with this system message",
    "/quit": "end the program (also Ctrl-D)",
}
_HINT = "Ctrl-C stops an answer, /help lists the commands, Ctrl-D quits."

Answer = Callable[[list[Message]], str]
Effort = Literal["none", "low", "medium", "high"]
LOCAL_CANVAS_LEN = 8
# Without these flags a server decides by itself.
ChosenDecoder = Annotated[
    DecoderName | None, typer.Option(help="Decoding algorithm.", show_default="verify; with --url the server's")
]
ChosenCanvasLen = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Canvas length: tokens drafted together.",
        show_default=f"{LOCAL_CANVAS_LEN}; with --url the server's",
    ),
]


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    effort: Annotated[Effort | None, typer.Option(help="How long the model may reason before it answers.")] = None,
    url: Annotated[str, typer.Option(help="Address of a running server; the model is not loaded here.")] = "",
    api_key: Annotated[str, typer.Option(envvar="QUICKSILVER_API_KEY", help="API key for --url.")] = "",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    decoder: ChosenDecoder = None,
    canvas_len: ChosenCanvasLen = None,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
    adapter: options.Adapters = [],  # noqa: B006
) -> None:
    """Chat with a model in the terminal, or with a running server. Ctrl-C stops an answer, /help lists the commands,
    Ctrl-D quits."""
    params = options.decode_params(
        max_tokens, temperature, seed, decoder or DecoderName.VERIFY, canvas_len or LOCAL_CANVAS_LEN
    )
    if url:
        given = {"name": decoder, "canvas_len": canvas_len}
        remote = RemoteModel(url, model, api_key, {name: value for name, value in given.items() if value is not None})
        out.print(f"[bold]{escape(model)}[/] at {escape(url)}. {_HINT}", soft_wrap=True)
        talk(remote_answers(remote, params, effort), system)
        return
    with out.status(f"loading {escape(model)}"):
        llm = options.open_llm(model, device, weights, threads, adapter)
    discard_typed(sys.stdin)
    params = options.for_model(params, llm.engine.info)
    out.print(f"[bold]{escape(model)}[/] on {llm.engine.info.device}. {_HINT}")
    talk(lambda turns: answer(llm, turns, params, effort), system)


def discard_typed(stream: TextIO) -> None:
    """Discard what was typed before the prompt appeared: on the screen it is part of another line."""
    if stream.isatty():
        termios.tcflush(stream, termios.TCIFLUSH)


def talk(answer_to: Answer, system: str | None) -> None:
    """Read lines and answer them until the input ends. A line that begins with / is a command, never a question."""
    turns = _first_turns(system)
    for line in _lines():
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return
        if word in ("/new", "/system"):
            system = (rest.strip() or None) if word == "/system" else system
            turns = _first_turns(system)
            message = f"the system message: {system}" if system else "no system message"
            out.print(f"New conversation with {message}", markup=False, highlight=False)
        elif word.startswith("/"):
            _show_help(None if word == "/help" else word)
        else:
            turns.append(Message("user", line))
            turns.append(Message("assistant", answer_to(turns)))


def _first_turns(system: str | None) -> list[Message]:
    return [Message("system", system)] if system else []


def _show_help(unknown: str | None) -> None:
    if unknown is not None:
        out.print(f"{unknown} is not a command. The commands are:", markup=False, highlight=False)
    for name, meaning in COMMANDS.items():
        out.print(f"  {name:14}{meaning}", markup=False, highlight=False)


def _lines() -> Iterator[str]:
    """Lines of input without blank ones. Ctrl-C at the prompt discards the line."""
    while True:
        try:
            line = out.input("[bold cyan]>[/] ").strip()
        except EOFError:
            out.print()
            return
        except KeyboardInterrupt:
            out.print()
            continue
        if line:
            yield line


def answer(llm: LLM, turns: list[Message], params: DecodeParams, effort: str | None = None) -> str:
    """Show one answer while it is decoded and return its text."""
    if out.is_terminal and not out.is_dumb_terminal:
        pieces = llm.stream_chat(turns, params, effort=effort, frames=True)
        return show_answer(out, pieces, CanvasView(llm.tokenizer, params.decoder.canvas_len))
    text = ""
    for piece in llm.stream_chat(turns, params, effort=effort):
        text += piece.text
        out.print(piece.reasoning + piece.text, end="", markup=False, highlight=False)
    out.print()
    return text


def remote_answers(remote: RemoteModel, params: DecodeParams, effort: str | None) -> Answer:
    """Answers of a server. Reasoning is shown and is no part of the conversation."""

    def answer_to(turns: list[Message]) -> str:
        text = ""
        try:
            for piece in remote.answer(turns, params, effort):
                text += piece.text
                out.print(piece.reasoning + piece.text, end="", markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            pass
        out.print()
        return text

    return answer_to
