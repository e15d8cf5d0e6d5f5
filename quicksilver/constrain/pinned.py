"""Text with holes: fixed parts that appear in the answer as they are, and holes that the model fills.

The whole answer is one terminal, so a hole may contain any text, and the model decides where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quicksilver.constrain.compile.lark_text import quoted


@dataclass(frozen=True, slots=True)
class Hole:
    min_chars: int = 1
    max_chars: int = 80
    # Whether the text may contain line breaks.
    is_multiline: bool = False


def pinned_grammar(parts: Sequence[str | Hole]) -> str:
    """A Lark grammar whose texts are `parts` with their holes filled."""
    return f"start: ANSWER\nANSWER: {' '.join(_term(part) for part in parts if part != '')}"


def _term(part: str | Hole) -> str:
    if isinstance(part, str):
        return quoted(part)
    char = r"(?s:.)" if part.is_multiline else r"[^\n\r]"
    return f"/{char}{{{part.min_chars},{part.max_chars}}}/"
