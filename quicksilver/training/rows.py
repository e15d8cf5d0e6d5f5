"""Training rows as text, before they are tokens: the records of all sources and syntheses.

Plain records of text. `formats` turns them into ids through the same functions that serving uses, so that training
and serving have the same prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.editing.prompts import EditRequest
from quicksilver.text.chat import Message, Tool


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation; every assistant turn is an answer unless `is_prompt_only`."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    effort: str | None = None
    domain: str = "chat"
    # The answers may not train anything (their licence is unclear): only the first user turn is used, on-policy.
    is_prompt_only: bool = False


@dataclass(frozen=True, slots=True)
class FimRow:
    """Text cut in three; the middle is the answer."""

    prefix: str
    middle: str
    suffix: str
    domain: str = "fim"


@dataclass(frozen=True, slots=True)
class EditRow:
    """A next edit: the answer is the region rewritten, or unchanged where nothing follows from the history."""

    request: EditRequest
    answer: str
    domain: str = "edit"
    # Whether tokens that repeat the region have the loss weight of plain text, and only what decides the edit counts in
    # full.
    counts_copies_apart: bool = False


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A prompt and its answer without any template."""

    prompt: str
    answer: str
    domain: str = "plain"


@dataclass(frozen=True, slots=True)
class TextRow:
    """Running text, every token of which counts."""

    text: str
    domain: str = "text"


Row = ChatRow | FimRow | EditRow | PlainRow | TextRow


def exchange(question: str, answer: str, domain: str = "chat", effort: str | None = None) -> ChatRow:
    """One question, one answer."""
    return ChatRow((Message("user", question), Message("assistant", answer)), effort=effort, domain=domain)


def row_text(row: Row) -> str:
    """The whole text of a row, for the overlap check."""
    if isinstance(row, ChatRow):
        return "\n".join(f"{m.content}\n{m.reasoning}" for m in row.messages)
    if isinstance(row, FimRow):
        return row.prefix + row.middle + row.suffix
    if isinstance(row, EditRow):
        request = row.request
        return f"{request.before}{request.region}{request.after}\n{row.answer}"
    return f"{row.prompt} {row.answer}" if isinstance(row, PlainRow) else row.text
