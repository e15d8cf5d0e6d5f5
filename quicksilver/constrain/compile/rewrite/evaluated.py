"""`unevaluatedProperties` and `unevaluatedItems`, which apply to members that no other keyword evaluates.

A value is in one of several cases, by the branches that apply to it. Each case evaluates fixed members, so the keyword
becomes `additionalProperties` or `items` there. Where several branches of a union apply, only the members of one count,
which admits less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from quicksilver.constrain.compile.rewrite.algebra import all_of, any_of
from quicksilver.constrain.compile.rewrite.exclusion import Spot, outside
from quicksilver.constrain.compile.rewrite.node import Condition, Node
from quicksilver.constrain.compile.rewrite.vocabulary import Json

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter

MAX_CASES = 64
# Levels of schemas for the same value; deeper ones count as evaluating nothing.
MAX_DEPTH = 8

# Names of properties or positions of items. None stands for all of them.
Members = tuple[Any, ...] | None


class Unclear(Exception):
    """Which members are evaluated depends on more than the branches that apply."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, and members that are evaluated in every value that satisfies it."""

    schema: Json
    seen: Members = ()


def unevaluated_properties(rewriter: Rewriter, node: Node, rest: Node) -> Json:
    def seen_by(member: Node) -> Members:
        if member.get("additionalProperties") is not None:
            return None
        if member.get("patternProperties"):
            raise Unclear
        return tuple(member.get("properties") or ())

    def close(names: tuple[str, ...]) -> Json:
        return {"properties": dict.fromkeys(names, True), "additionalProperties": rewriter.enforce(rest)}

    return by_case(_Cases(rewriter, "unevaluatedProperties", seen_by), node, close)


def unevaluated_items(rewriter: Rewriter, node: Node, rest: Node) -> Json:
    def seen_by(member: Node) -> Members:
        if member.get("items") is not None:
            return None
        if member.get("contains") is not None:
            raise Unclear
        return tuple(range(len(member.get("prefixItems") or ())))

    def close(positions: tuple[int, ...]) -> Json:
        first = {"prefixItems": [True] * len(positions)} if positions else {}
        return {**first, "items": rewriter.enforce(rest)}

    return by_case(_Cases(rewriter, "unevaluatedItems", seen_by), node, close)


def by_case(cases: _Cases, node: Node, close: Callable[[tuple[Any, ...]], Json]) -> Json:
    """The union of the cases, each closed to the members that it does not evaluate."""
    try:
        found = cases.of(node)
    except Unclear:
        why = "the evaluated members depend on the value"
        return cases.rewriter.leave_to_validation(cases.keyword, node.at, why, True)
    return any_of([all_of([case.schema, True if case.seen is None else close(case.seen)]) for case in found])


class _Cases:
    """The cases for one keyword. `seen_by` gives the members that the plain keywords of a node evaluate."""

    def __init__(self, rewriter: Rewriter, keyword: str, seen_by: Callable[[Node], Members]) -> None:
        self.rewriter = rewriter
        self.keyword = keyword
        self._seen_by = seen_by

    def of(self, node: Node) -> list[Case]:
        """Cases of `node`, apart from the keyword itself. At least one applies to each of its values."""
        return self._combined([Case(True, self._seen_by(node))], self._choices(node, MAX_DEPTH))

    def _inside(self, node: Node, depth: int) -> list[Case]:
        if depth == 0:
            return [Case(True)]
        seen = None if node.get(self.keyword) is not None else self._seen_by(node)
        return self._combined([Case(True, seen)], self._choices(node, depth))

    def _combined(self, found: list[Case], choices: Iterator[list[Case]]) -> list[Case]:
        for choice in choices:
            if any(case.seen != () for case in choice):
                found = [joined(a, b) for a, b in product(found, choice)]
            if len(found) > MAX_CASES:
                raise Unclear
        return found

    def _choices(self, node: Node, depth: int) -> Iterator[list[Case]]:
        """For each subschema or union that applies to the same value, its cases."""
        if node.get("$ref") is not None:
            yield self._inside(self.rewriter.document.target(node.get("$ref")), depth - 1)
        for part in node.get("allOf") or ():
            yield self._inside(part, depth - 1)
        for word in ("anyOf", "oneOf"):
            branches = [(branch, self._inside(branch, depth - 1)) for branch in node.get(word) or ()]
            if any(case.seen != () for _, cases in branches for case in cases):
                yield [case for branch, cases in branches for case in self._under(node, branch, cases)]
        if node.get("if") is not None:
            yield self._of_condition(node, node.get("if"), depth)
        for key, sub in (node.get("dependentSchemas") or {}).items():
            there: Json = {"type": "object", "required": [key]}
            yield [*(joined(Case(there), case) for case in self._inside(sub, depth - 1)), Case(True)]

    def _under(self, node: Node, branch: Node, cases: list[Case]) -> list[Case]:
        met = Case(self.rewriter.enforce_beside(branch, node))
        return [joined(met, case) for case in cases]

    def _of_condition(self, node: Node, condition: Condition, depth: int) -> list[Case]:
        tested, then, otherwise = (
            [Case(True)] if sub is None else self._inside(sub, depth - 1)
            for sub in (condition.test, condition.then, condition.otherwise)
        )
        met = [joined(a, b) for a, b in product(tested, then)]
        if all(case.seen == () for case in [*met, *otherwise]):
            return [Case(True)]
        failed = Case(True)
        if any(case.seen != () for case in otherwise):
            spot = Spot("if", node.at)
            failed = Case(outside(self.rewriter, condition.test, self.rewriter.surroundings(node), spot))
        return [*self._under(node, condition.test, met), *(joined(failed, case) for case in otherwise)]


def joined(a: Case, b: Case) -> Case:
    """Both cases at once."""
    seen = None if a.seen is None or b.seen is None else tuple(dict.fromkeys((*a.seen, *b.seen)))
    return Case(all_of([a.schema, b.schema]), seen)
