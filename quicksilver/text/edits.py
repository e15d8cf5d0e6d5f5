"""Fill-in-the-middle and next-edit prompts, and the reply a next edit must have."""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.text.chat import Message
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Snippet:
    path: str
    code: str


@dataclass(frozen=True, slots=True)
class EditRequest:
    """What an editor sent. `before + region + after` is the excerpt of the file; the cursor is an offset in `region`."""

    path: str
    before: str
    region: str
    after: str
    cursor: int | None = None
    snippets: tuple[Snippet, ...] = ()
    history: str = ""
    """Unified diffs, oldest first."""


def fim_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, max_tokens: int | None = None) -> list[int]:
    """Prefix-suffix-middle ids; a model without such tokens continues the prefix. Longer prompts are cut far from the gap."""
    raise RuntimeError("skeleton")


def parse_edit(prompt: str) -> EditRequest:
    """InvalidRequest where there is no region to edit."""
    raise RuntimeError("skeleton")


def edit_prompt(tokenizer: Tokenizer, request: EditRequest, max_tokens: int | None = None) -> list[int]:
    """Ids for weights that learned the edit tokens."""
    raise RuntimeError("skeleton")


def edit_messages(request: EditRequest) -> list[Message]:
    """The same request as an instruction, for chat weights that did not."""
    raise RuntimeError("skeleton")


def edit_reply(request: EditRequest, answer: str) -> str:
    """The model's answer as the reply every client parses: bare fence, region only."""
    raise RuntimeError("skeleton")
