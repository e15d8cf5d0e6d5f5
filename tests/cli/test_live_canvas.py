"""The terminal view: canvas cells, and committed lines that are printed once."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from quicksilver.cli.live_canvas import AnswerStats, CanvasView, shade, show_answer
from quicksilver.core import Delta, FinishReason, Frame, Usage
from quicksilver.llm import Piece
from tests.support.small_tokenizer import small_tokenizer


def ids(text: str) -> tuple[int, ...]:
    return tuple(small_tokenizer().encode_markup(text))


def frame(text: str, confidence: float = 0.5, *, is_decided: bool = False, step: int = 1) -> Frame:
    tokens = ids(text)
    return Frame("x", step, tokens, (is_decided,) * len(tokens), (confidence,) * len(tokens))


def view(canvas_len: int = 0) -> CanvasView:
    return CanvasView(small_tokenizer(), canvas_len)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, height=8, color_system="truecolor")


def said(text: str, finish: FinishReason | None = None) -> Piece:
    usage = Usage(completion_tokens=7, forwards=2) if finish else None
    return Piece(text, Delta("x", ids(text), finish=finish, usage=usage))


def test_open_positions_are_masks_and_guesses_are_shaded() -> None:
    assert view(3).show(frame("ab", 0.0)).plain == "░▒░▒░▒"
    drafts = view().show(frame("ab", 0.95))
    assert drafts.plain == "ab"
    assert {str(span.style) for span in drafts.spans} == {"italic black on #fde725"}


def test_sure_is_yellow_and_unsure_violet_with_ink_that_can_be_read() -> None:
    assert (shade(0.0), shade(1.0)) == ("white on #440154", "black on #fde725")


def test_a_decided_token_that_changes_is_highlighted_once() -> None:
    cells = view()
    cells.show(frame("ab", is_decided=True))
    edited = cells.show(frame("ac", is_decided=True))
    assert ["reverse" in str(span.style) for span in edited.spans] == [False, True]
    assert not any("reverse" in str(span.style) for span in cells.show(frame("ac", is_decided=True)).spans)


def test_nothing_is_shown_after_the_end_of_the_text() -> None:
    assert view(9).show(frame("a<|im_end|>bc")).plain == "a"


def test_an_answer_longer_than_the_screen_is_printed_once() -> None:
    console = terminal()
    lines = [f"line {i}\n" for i in range(30)]
    pieces = [piece for line in lines for piece in (said(line), Piece(frame=frame("??")))]
    text = show_answer(console, [*pieces, said("end", FinishReason.STOP)], view())
    assert text == "".join(lines) + "end"
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(written.count(f"line {i}\r\n") + written.count(f"line {i}\n") == 1 for i in range(30))


def test_stopping_keeps_what_was_committed() -> None:
    def stopped() -> Iterator[Piece]:
        yield said("kept")
        yield Piece(frame=frame("draft"))
        raise KeyboardInterrupt

    console = terminal()
    assert show_answer(console, stopped(), view()) == "kept"
    assert "stopped" in console.file.getvalue()  # type: ignore[attr-defined]


def test_figures_are_those_of_the_engine() -> None:
    stats = AnswerStats()
    stats.count(Piece(frame=frame("a", step=3)))
    assert (stats.tokens, stats.forwards) == (0, 3)
    stats.count(said("ab", FinishReason.STOP))
    assert "7 tokens" in stats.line().plain
    assert "2 forwards · 3.50 tokens/forward" in stats.line().plain
