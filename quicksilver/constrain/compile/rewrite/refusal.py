"""The refusal of a schema: an exception with the keyword and its JSON pointer."""

from __future__ import annotations

from quicksilver.errors import InvalidGrammar


class Unenforceable(InvalidGrammar):
    """A keyword that the mask alone cannot guarantee, at a JSON pointer into the schema."""

    def __init__(self, keyword: str, at: str, why: str) -> None:
        super().__init__(f"`{keyword}` at '{at or '/'}' cannot be enforced: {why}.")
        self.keyword = keyword
        self.at = at


def too_big(what: str, bound: int, found: int) -> InvalidGrammar:
    return InvalidGrammar(f"There are too many {what}: {found} where {bound} are allowed.")
