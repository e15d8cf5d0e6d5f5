"""Values outside a schema, at a place where other schemas hold too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quicksilver.constrain.compile.rewrite.node import Node
from quicksilver.constrain.compile.rewrite.prune import prune
from quicksilver.constrain.compile.rewrite.vocabulary import Json

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter


class Spot(NamedTuple):
    """A keyword and its JSON pointer, for a refusal."""

    keyword: str
    at: str


def outside(rewriter: Rewriter, excluded: Node, members: list[Node], spot: Spot) -> Json:
    """Values outside `excluded` that are compatible with `members`. If none can be written, left to validation."""
    num_lost = rewriter.num_lost
    rest = prune(rewriter.document, rewriter.complement(excluded, known_names(members)), members)
    if rest is False and rewriter.num_lost > num_lost:
        return rewriter.leave_to_validation(*spot, "the remaining values cannot be written as a grammar", True)
    return rest


def known_names(members: list[Node]) -> frozenset[str]:
    """Names of properties that the schemas list or require."""
    return frozenset(
        name for member in members for word in ("properties", "required") for name in member.get(word) or ()
    )
