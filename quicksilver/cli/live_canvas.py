"""Draws an answer in the terminal while it is decoded: masks, drafts shaded by confidence, committed text.

Committed lines are printed once and scroll away. Only the current line, the canvas and the statistics are redrawn, so
the cost of a redraw does not grow with the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from quicksilver.core import Frame, Usage

if TYPE_CHECKING:
    from quicksilver.llm import Piece
    from quicksilver.text.tokenizer import Tokenizer

_MASKS = "░▒"
_VIRIDIS = (
    *("#440154", "#482878", "#3e4a89", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)
# Shades from this index on are light and need black text.
_FIRST_LIGHT = 5
_REFRESH_PER_S = 20


class CanvasView:
    """Renders the canvas of one answer. Keeps the last frame to highlight decided tokens that changed."""

    def __init__(self, tokenizer: Tokenizer, canvas_len: int) -> None:
        self._tokenizer = tokenizer
        self._canvas_len = canvas_len
        self._special = frozenset(tokenizer.special_tokens.values())
        self._last: Frame | None = None

    def show(self, frame: Frame) -> Text:
        """Return the proposed tokens up to the first special token, then one mask per undecided position."""
        text = Text()
        is_edited = self._edits(frame)
        for i, token_id in enumerate(frame.token_ids):
            if token_id in self._special:
                return text
            self._append(text, frame, i, is_edited[i])
        text.append(_MASKS * max(0, self._canvas_len - len(frame.token_ids)), style="dim")
        return text

    def _append(self, text: Text, frame: Frame, i: int, is_edited: bool) -> None:
        confidence = frame.confidence[i]
        if confidence == 0:
            text.append(_MASKS, style="dim")
            return
        style = shade(confidence) if frame.is_decided[i] else f"italic {shade(confidence)}"
        text.append(self._tokenizer.token_text(frame.token_ids[i]), style=f"{style} reverse" if is_edited else style)

    def _edits(self, frame: Frame) -> list[bool]:
        """Return which decided tokens changed. A shorter canvas means a commit, so positions cannot be compared."""
        last, self._last = self._last, frame
        if last is None or len(last.token_ids) != len(frame.token_ids):
            return [False] * len(frame.token_ids)
        rows = zip(last.is_decided, last.token_ids, frame.token_ids, strict=True)
        return [was_decided and before != now for was_decided, before, now in rows]


def shade(confidence: float) -> str:
    """Map confidence to a colour from violet (0) to yellow (1), the same scale as in the playground."""
    index = min(int(confidence * len(_VIRIDIS)), len(_VIRIDIS) - 1)
    ink = "black" if index >= _FIRST_LIGHT else "white"
    return f"{ink} on {_VIRIDIS[index]}"


@dataclass(slots=True)
class AnswerStats:
    """The statistics line under an answer."""

    tokens: int = 0
    forwards: int = 0
    started: float = field(default_factory=time.perf_counter)

    def count(self, piece: Piece) -> None:
        if piece.frame is not None:
            self.forwards = piece.frame.step
        if piece.delta is not None:
            self.tokens += len(piece.delta.token_ids)
            self._settle(piece.delta.usage)

    def _settle(self, usage: Usage | None) -> None:
        if usage is not None:
            self.tokens, self.forwards = usage.completion_tokens, usage.forwards

    def line(self) -> Text:
        seconds = time.perf_counter() - self.started
        parts = [f"{self.tokens} tokens", f"{seconds:.2f} s", f"{self.tokens / max(seconds, 1e-9):.0f} tok/s"]
        if self.forwards:
            parts += [f"{self.forwards} forwards", f"{self.tokens / self.forwards:.2f} tokens/forward"]
        return Text(" · ".join(parts), style="dim")


def show_answer(console: Console, pieces: Iterable[Piece], view: CanvasView) -> str:
    """Show one answer until it ends or Ctrl-C stops it. Returns the committed text."""
    whole, open_line, stats, note = "", "", AnswerStats(), ""
    with Live(console=console, refresh_per_second=_REFRESH_PER_S) as live:
        try:
            for piece in pieces:
                stats.count(piece)
                whole += piece.text
                open_line = _print_lines(live.console, open_line + piece.reasoning + piece.text)
                canvas = view.show(piece.frame) if piece.frame else Text()
                live.update(Group(Text(open_line) + canvas, stats.line()))
        except KeyboardInterrupt:
            note = " · stopped"
        live.update(Group(Text(open_line), stats.line() + Text(note, style="dim")))
    return whole


def _print_lines(console: Console, text: str) -> str:
    """Print complete lines above the live area and return the incomplete one."""
    lines, newline, rest = text.rpartition("\n")
    if newline:
        console.print(Text(lines))
    return rest
