"""Schemas for the names of properties: `patternProperties` and `propertyNames`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quicksilver.constrain.compile.rewrite.algebra import all_of
from quicksilver.constrain.compile.rewrite.ecma import name_pattern, value_pattern
from quicksilver.constrain.compile.rewrite.exclusion import known_names
from quicksilver.constrain.compile.rewrite.look_around import is_unsupported
from quicksilver.constrain.compile.rewrite.node import Document, Node
from quicksilver.constrain.compile.rewrite.patterns import ANY_TEXT, format_pattern, length_pattern, one_of, other_than
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.regular import is_empty
from quicksilver.constrain.compile.rewrite.vocabulary import Json

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter

# Patterns that match every name.
CATCH_ALL = frozenset(("", "^", "$", ".*", "^.*", ".*$"))


def pattern_properties(rewriter: Rewriter, node: Node, listed: dict[str, Json]) -> dict[str, Any]:
    """`patternProperties` in the compiler's syntax, and `properties` for patterns that match known names only."""
    patterns = {name_pattern(pattern, node.at): sub for pattern, sub in node.words["patternProperties"].items()}
    if len(patterns) < len(node.words["patternProperties"]):
        raise Unenforceable("patternProperties", node.at, "two of its patterns are the same")
    always = all_of([rewriter.enforce(sub) for pattern, sub in patterns.items() if pattern in CATCH_ALL])
    properties = {name: all_of([schema, always]) for name, schema in listed.items()}
    out: dict[str, Any] = {"properties": properties, "patternProperties": {}}
    for pattern, sub in patterns.items():
        if pattern in CATCH_ALL:
            continue
        schema, names = all_of([rewriter.enforce(sub), always]), only_names(rewriter, node, pattern)
        if names is None:
            out["patternProperties"][pattern] = schema
        for name in names or ():
            out["properties"][name] = all_of([out["properties"].get(name, True), schema])
    # A pattern that matches every name leaves no property to `additionalProperties` of the node.
    rest = {"additionalProperties": always} if CATCH_ALL & patterns.keys() else {}
    return {word: schemas for word, schemas in out.items() if schemas} | rest


def only_names(rewriter: Rewriter, node: Node, pattern: str) -> list[str] | None:
    """The names that match `pattern`, if all of them are known; else None. llguidance would admit a comma after the
    last of them and then no other name."""
    known = known_names(rewriter.surroundings(node))
    others = other_than(known)
    if others is None or not is_empty([{"pattern": pattern}, {"pattern": others}]):
        return None
    return [name for name in sorted(known) if not is_empty([{"pattern": pattern}, {"enum": [name]}])]


def property_names(rewriter: Rewriter, node: Node, names: Node) -> Json:
    """A list of names, or one pattern for all of them."""
    if set(names.words) == {"$ref"}:
        return property_names(rewriter, node, rewriter.document.target(names.words["$ref"]))
    if names.never or "string" not in names.words.get("type", ("string",)):
        return {"maxProperties": 0}
    if set(names.words) <= {"type", "enum"} and names.get("enum") is not None:
        return {"properties": dict.fromkeys(filter(is_text, names.words["enum"]), True), "additionalProperties": False}
    pattern = text_pattern(rewriter.document, names)
    if pattern == ANY_TEXT:
        return True
    if pattern is None or not is_catch_all(node):
        why = "only lists, patterns, lengths and unions of them are supported"
        return rewriter.leave_to_validation("propertyNames", node.at, why, True)
    known = only_names(rewriter, node, pattern)
    admitted = {"patternProperties": {pattern: True}} if known is None else {"properties": dict.fromkeys(known, True)}
    return {**admitted, "additionalProperties": False}


def is_catch_all(node: Node) -> bool:
    """Whether all `patternProperties` match every name."""
    return all(pattern in CATCH_ALL for pattern in node.get("patternProperties") or ())


def text_pattern(document: Document, node: Node, depth: int = 4) -> str | None:
    """A pattern that only strings of `node` match, and all of them apart from rare characters; None if there is no
    simple one."""
    if node.never or "string" not in node.words.get("type", ("string",)) or depth == 0:
        return None
    words = {word: value for word, value in node.words.items() if word != "type"}
    if "format" in words and format_pattern(words["format"]) is None:
        del words["format"]
    if set(words) == {"$ref"}:
        return text_pattern(document, document.target(words["$ref"]), depth - 1)
    if set(words) == {"enum"}:
        return one_of(list(filter(is_text, words["enum"])))
    if set(words) == {"format"}:
        return format_pattern(words["format"])
    if set(words) == {"not"} and set(words["not"].words) == {"enum"}:
        return other_than(filter(is_text, words["not"].words["enum"]))
    if set(words) == {"anyOf"}:
        ways = [text_pattern(document, way, depth - 1) for way in words["anyOf"]]
        return ANY_TEXT if ANY_TEXT in ways else None if None in ways else "|".join(f"(?:{way})" for way in ways)
    return length_and_pattern(words, node.at) if set(words) <= {"pattern", "minLength", "maxLength"} else None


def length_and_pattern(words: dict[str, Any], at: str) -> str | None:
    """A pattern for a length or for `pattern`; None if the pattern alone does not imply the length."""
    least, most = words.get("minLength", 0), words.get("maxLength")
    if "pattern" not in words:
        return length_pattern(least, most)
    if is_unsupported(words["pattern"]):
        return None
    pattern = value_pattern(words["pattern"], at)
    beyond = [{"maxLength": least - 1}] * (least > 0) + ([] if most is None else [{"minLength": most + 1}])
    return pattern if all(is_empty([{"pattern": pattern}, length]) for length in beyond) else None


def is_text(value: Any) -> bool:
    return isinstance(value, str)
