"""Rewrites a schema into keywords that llguidance enforces exactly.

Soundness: `enforce(S)` admits only instances of S, and `complement(S)` only instances of not-S. Both may admit fewer
values. Neither admits more, except under Policy.VALIDATED, where `needs_validation` is then set.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from quicksilver.constrain.compile.rewrite import complement, enforce
from quicksilver.constrain.compile.rewrite.disjoint import Disjoint
from quicksilver.constrain.compile.rewrite.finite import DEFINITIONS, endless, is_finite, without
from quicksilver.constrain.compile.rewrite.node import Document, Node, conjuncts
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.vocabulary import Json
from quicksilver.constrain.source import Policy
from quicksilver.errors import InvalidGrammar

# Schemas written per rewrite; bounds the number of case splits.
MAX_WORK = 5_000


class Rewriter:
    """One rewrite of one document."""

    def __init__(self, document: Document, policy: Policy, guardless: Set[str] | None = None) -> None:
        self.document = document
        # JSON pointers of arrays whose `uniqueItems` no guard can enforce at run time; None if there is no guard.
        self.guardless = guardless
        self.needs_guard = False
        self.needs_validation = False
        # Alternatives that complements left out. A complement that leaves this unchanged is exact.
        self.num_lost = 0
        self._policy = policy
        self._work = 0
        self._names: dict[str, str] = {}
        self._pending: list[str] = []
        self._complementing: set[str] = set()
        self._context: list[Node] = []

    def schema(self) -> Json:
        """The whole document with its definitions, for llguidance."""
        root = self.enforce(self.document.root)
        definitions: dict[str, Json] = {}
        while self._pending:
            key = self._pending.pop()
            definitions[self._names[key]] = self.enforce(self.document.target(key))
        if isinstance(root, bool) or not definitions:
            return root
        root, definitions = self._without_endless(root, definitions)
        return {**root, "$defs": definitions}

    def _without_endless(self, root: dict[str, Any], definitions: dict[str, Json]) -> tuple[Any, dict[str, Json]]:
        """Removes the definitions without a finite value. Raises InvalidGrammar if the root needs one of them."""
        names = endless(definitions)
        if not names:
            return root, definitions
        if not is_finite(root, definitions.keys() - names):
            pointer = next(key for key, name in self._names.items() if name in names)
            raise InvalidGrammar(f"`$ref` to '{pointer or '/'}': no finite value satisfies this definition.")
        kept = {name: without(schema, names) for name, schema in definitions.items() if name not in names}
        return without(root, names), kept

    def enforce(self, node: Node) -> Json:
        """A schema that admits only instances of `node`."""
        return self._enforce(node, [])

    def enforce_beside(self, node: Node, holder: Node) -> Json:
        """The same for a subschema that applies to the same value as `holder`, whose other keywords hold too."""
        return self._enforce(node, self.surroundings(holder))

    def _enforce(self, node: Node, context: list[Node]) -> Json:
        self._spend(node)
        before, self._context = self._context, context
        try:
            return enforce.enforce(self, node)
        finally:
            self._context = before

    def surroundings(self, holder: Node) -> list[Node]:
        """The schemas that hold for every value to which `holder` applies its subschemas."""
        plain = {word: value for word, value in holder.words.items() if word not in ("oneOf", "anyOf")}
        branches = holder.get("anyOf") or ()
        shared = set.intersection(*(set(branch.get("required") or ()) for branch in branches)) if branches else set()
        implied = [Node(holder.at, {"required": sorted(shared)})] if shared else []
        return conjuncts(self.document, Node(holder.at, plain)) + implied + self._context

    def complement(self, node: Node, names: frozenset[str] = frozenset()) -> Json:
        """A schema that admits only values that `node` refuses. `names` are candidates for forbidden properties."""
        self._spend(node)
        key = node.get("$ref")
        if key is None:
            return complement.complement(self, node, names)
        if key in self._complementing:
            self.num_lost += 1
            return False
        self._complementing.add(key)
        try:
            return complement.complement(self, node, names)
        finally:
            self._complementing.discard(key)

    def are_disjoint(self, a: Node, b: Node, context: Sequence[Node] = ()) -> bool:
        """Whether it is proved that no value matches `a`, `b` and all of `context`."""
        return Disjoint(self.document, context).holds(a, b)

    def reference(self, key: str) -> dict[str, Any]:
        """A `$ref` to the rewritten target."""
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._pending.append(key)
        return {"$ref": f"{DEFINITIONS}{self._names[key]}"}

    def leave_to_validation(self, keyword: str, at: str, why: str, superset: Json) -> Json:
        """Under Policy.VALIDATED the wider schema `superset`; otherwise raises Unenforceable."""
        if self._policy is Policy.GUARANTEED:
            raise Unenforceable(keyword, at, why)
        self.needs_validation = True
        return superset

    def _spend(self, node: Node) -> None:
        self._work += 1
        if self._work > MAX_WORK:
            raise Unenforceable("oneOf", node.at, "combining its cases takes too many rules; simplify the schema")
