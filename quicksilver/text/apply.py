"""Apply an update snippet to a file: what it does not touch is copied byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.text.chat import Message


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    original: str
    update: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Final text: bytes of the original or lines of the update."""

    text: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A span of the original that the model must rewrite so that `update` takes effect."""

    original: str
    update: str


Piece = Copy | Rewrite


def parse_apply(prompt: str) -> ApplyRequest | None:
    """None where the prompt has no tags: it is a plain instruction then."""
    raise RuntimeError("skeleton")


def merge(original: str, update: str) -> list[Piece]:
    """Pieces in order. All `Copy`: their texts joined are the merged file."""
    raise RuntimeError("skeleton")


def rewrite_messages(piece: Rewrite) -> list[Message]:
    """What to ask the model for one piece; its answer, unfenced, takes the piece's place."""
    raise RuntimeError("skeleton")
