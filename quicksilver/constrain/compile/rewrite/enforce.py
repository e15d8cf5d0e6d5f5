"""Rewrites a schema keyword by keyword into plain keywords and conjuncts.

Plain keywords stay as they are. Each other keyword becomes a conjunct: a schema that, joined by `allOf`, admits the
same values or fewer. The order is kept, since the grammar writes properties in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from quicksilver.constrain.compile.rewrite import counting, evaluated, names
from quicksilver.constrain.compile.rewrite.algebra import all_of, any_of
from quicksilver.constrain.compile.rewrite.disjoint import Disjoint, possible_types
from quicksilver.constrain.compile.rewrite.ecma import name_pattern, value_pattern
from quicksilver.constrain.compile.rewrite.exclusion import Spot, outside
from quicksilver.constrain.compile.rewrite.look_around import is_unsupported, split_look_ahead
from quicksilver.constrain.compile.rewrite.node import Condition, Node, conjuncts
from quicksilver.constrain.compile.rewrite.numbers import BOUNDS, exact_bounds, require_exact_values
from quicksilver.constrain.compile.rewrite.patterns import BASE64, format_pattern
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.regular import is_empty, is_portable
from quicksilver.constrain.compile.rewrite.vocabulary import TYPES, Json

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter

PLAIN = frozenset(("minLength", "maxLength", "minItems", "maxItems", "required", "multipleOf", *BOUNDS))
# Keywords that values of other types than objects satisfy, and those whose schemas `conjuncts` finds.
OBJECT_WORDS = frozenset(
    (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
        *("$ref", "allOf"),
    )
)


def enforce(rewriter: Rewriter, node: Node) -> Json:
    """A schema that admits instances of `node` only."""
    if node.never:
        return False
    # Separate schemas: in older drafts `items` also applies to the items of a newer `prefixItems`.
    own = all_of([own_words(rewriter, node, each) for each in (node.words, node.extra)])
    words = [*node.words.items(), *node.extra.items()]
    parts = [CONJUNCTS[word](rewriter, node, value) for word, value in words if word in CONJUNCTS]
    return all_of([*parts, own] if brings_properties_first(node) else [own, *parts])


def brings_properties_first(node: Node) -> bool:
    """Whether a subschema with properties is written before the properties of the node."""
    first = next(
        (word for word in node.words if word in ("properties", "$ref", "allOf", "anyOf", "oneOf")), "properties"
    )
    return first != "properties"


def own_words(rewriter: Rewriter, node: Node, words: Mapping[str, Any]) -> Json:
    """Those of `words` that need no rewriting beyond their subschemas."""
    out: dict[str, Any] = {}
    for word, value in words.items():
        if word in PLAIN:
            out[word] = value
        elif word in NESTED:
            out[word] = NESTED[word](rewriter, value)
    if "pattern" in words and not is_unsupported(rest := split_look_ahead(words["pattern"])[1]):
        out["pattern"] = value_pattern(rest, node.at)
    if "patternProperties" in words:
        out |= names.pattern_properties(rewriter, node, out.get("properties", {}))
    return exact_bounds(out, node.at) if out else True


def nested_type(_rewriter: Rewriter, types: tuple[str, ...]) -> Any:
    return types[0] if len(types) == 1 else list(types)


def nested_map(rewriter: Rewriter, schemas: dict[str, Node]) -> dict[str, Json]:
    return {name: rewriter.enforce(sub) for name, sub in schemas.items()}


def nested_list(rewriter: Rewriter, schemas: list[Node]) -> list[Json]:
    return [rewriter.enforce(sub) for sub in schemas]


def nested_one(rewriter: Rewriter, schema: Node) -> Json:
    return rewriter.enforce(schema)


NESTED: dict[str, Callable[[Rewriter, Any], Any]] = {
    "type": nested_type,
    "properties": nested_map,
    "additionalProperties": nested_one,
    "prefixItems": nested_list,
    "items": nested_one,
}


def reference(rewriter: Rewriter, _node: Node, key: str) -> Json:
    return rewriter.reference(key)


def values(_rewriter: Rewriter, node: Node, allowed: list[Any]) -> Json:
    require_exact_values(allowed, node.at)
    return {"enum": allowed} if allowed else False


def every(rewriter: Rewriter, node: Node, schemas: list[Node]) -> Json:
    return all_of([rewriter.enforce_beside(sub, node) for sub in schemas])


def some(rewriter: Rewriter, node: Node, schemas: list[Node]) -> Json:
    return any_of([rewriter.enforce_beside(sub, node) for sub in schemas])


def exactly_one(rewriter: Rewriter, node: Node, schemas: list[Node]) -> Json:
    """The union of the branches, each without the values of branches that it may overlap."""
    union = any_of([exclusive(rewriter, node, schemas, i) for i in range(len(schemas))])
    if union is False:
        raise Unenforceable("oneOf", node.at, "no value matches exactly one of its branches")
    return union


def exclusive(rewriter: Rewriter, node: Node, schemas: list[Node], index: int) -> Json:
    """Branch `index` and none of the others."""
    branch = schemas[index]
    # The values of the branch also satisfy its keywords of other drafts, since they are enforced.
    around = conjuncts(rewriter.document, Node(branch.at, branch.extra)) + rewriter.surroundings(node)
    members = conjuncts(rewriter.document, branch) + around
    parts = [rewriter.enforce_beside(branch, node)]
    for i, other in enumerate(schemas):
        shared = set() if i == index else Disjoint(rewriter.document, around).shared_types(branch, other)
        if shared and is_about_objects(rewriter, other, shared):
            kinds = [kind for kind in TYPES if kind in possible_types(members) - shared]
            parts.append({"type": kinds} if kinds else False)
        elif shared:
            parts.append(outside(rewriter, other, members, Spot("oneOf", node.at)))
    return all_of(parts)


def is_about_objects(rewriter: Rewriter, node: Node, kinds: set[str]) -> bool:
    """Whether `node` has keywords for objects only, so that all values of `kinds`, other types, match it."""
    members = conjuncts(rewriter.document, node)
    return "object" not in kinds and all(member.words.keys() <= OBJECT_WORDS for member in members)


def negation(rewriter: Rewriter, node: Node, excluded: Node) -> Json:
    return outside(rewriter, excluded, rewriter.surroundings(node), Spot("not", node.at))


def conditional(rewriter: Rewriter, node: Node, condition: Condition) -> Json:
    then, otherwise = (
        True if branch is None else rewriter.enforce_beside(branch, node)
        for branch in (condition.then, condition.otherwise)
    )
    failed = outside(rewriter, condition.test, rewriter.surroundings(node), Spot("if", node.at))
    return any_of([all_of([rewriter.enforce_beside(condition.test, node), then]), all_of([failed, otherwise])])


def dependent_names(_rewriter: Rewriter, _node: Node, needs: dict[str, list[str]]) -> Json:
    return all_of(
        [any_of([{"properties": {key: False}}, {"required": names}]) for key, names in needs.items() if names]
    )


def dependent_schemas(rewriter: Rewriter, node: Node, needs: dict[str, Node]) -> Json:
    return all_of([dependent_schema(rewriter, node, key, sub) for key, sub in needs.items()])


def dependent_schema(rewriter: Rewriter, node: Node, key: str, needed: Node) -> Json:
    """The property is absent, or it is present and the schema holds."""
    there = {"type": ("object",), "required": [key]}
    holder = Node(node.at, {"allOf": [Node(node.at, there), node]})
    met = rewriter.enforce_beside(needed, holder)
    return any_of([{"properties": {key: False}}, all_of([{"type": "object", "required": [key]}, met])])


def look_around(rewriter: Rewriter, node: Node, pattern: str) -> Json:
    """What the pattern requires beyond the one that `own_words` writes."""
    found, rest = split_look_ahead(pattern)
    parts: list[Json] = []
    for ahead in found:
        if is_unsupported(ahead.pattern) or is_unsupported(rest):
            return left_pattern(rewriter, node)
        if ahead.must_match:
            parts.append({"pattern": value_pattern(ahead.pattern, node.at)})
        elif not excludes(node, rest, ahead.pattern):
            return left_pattern(rewriter, node)
    return left_pattern(rewriter, node) if is_unsupported(rest) else all_of(parts)


def left_pattern(rewriter: Rewriter, node: Node) -> Json:
    return rewriter.leave_to_validation(
        "pattern", node.at, "look-around, back-references and word boundaries are not supported", True
    )


def excludes(node: Node, pattern: str, refused: str) -> bool:
    """Whether it is proved that no string of the grammar matches `refused`."""
    body = format_pattern(str(node.get("format")))
    admitted = [{"pattern": value_pattern(pattern, node.at)}, *([{"pattern": body}] if body else [])]
    return is_portable(refused.replace("(?:", "(")) and is_empty(
        [*admitted, {"pattern": name_pattern(refused, node.at)}]
    )


def string_format(_rewriter: Rewriter, _node: Node, name: str) -> Json:
    pattern = format_pattern(name)
    return True if pattern is None else {"pattern": pattern}


def encoding(_rewriter: Rewriter, _node: Node, name: str) -> Json:
    return {"pattern": BASE64} if name == "base64" else True


def media_type(rewriter: Rewriter, node: Node, name: str) -> Json:
    if name != "application/json":
        return True
    return rewriter.leave_to_validation("contentMediaType", node.at, "JSON inside a string is not supported", True)


CONJUNCTS: dict[str, Callable[[Rewriter, Node, Any], Json]] = {
    "$ref": reference,
    "enum": values,
    "allOf": every,
    "anyOf": some,
    "oneOf": exactly_one,
    "not": negation,
    "if": conditional,
    "dependentRequired": dependent_names,
    "dependentSchemas": dependent_schemas,
    "pattern": look_around,
    "format": string_format,
    "contentEncoding": encoding,
    "contentMediaType": media_type,
    "propertyNames": names.property_names,
    "contains": counting.contains,
    "uniqueItems": counting.unique_items,
    "minProperties": counting.min_properties,
    "maxProperties": counting.max_properties,
    "unevaluatedProperties": evaluated.unevaluated_properties,
    "unevaluatedItems": evaluated.unevaluated_items,
}
