"""Compiles the format of an answer to a grammar: JSON Schema, JSON object, regular expression, Lark, or labels.

`compile_response_format` raises InvalidGrammar, which names the keyword. Its result has passed the trial compile.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from llguidance import regex_to_lark

from quicksilver.constrain.compile.lark_text import TEXT, quoted, refuse_reserved_syntax, thinking_rules
from quicksilver.constrain.compile.rewrite.limits import (
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    limit_regex_size,
    limit_schema_size,
)
from quicksilver.constrain.compile.rewrite.node import Document
from quicksilver.constrain.compile.rewrite.refusal import too_big
from quicksilver.constrain.compile.rewrite.rewriter import Rewriter
from quicksilver.constrain.compile.rewrite.vocabulary import Json
from quicksilver.constrain.compile.trial_compile import trial_compile
from quicksilver.constrain.places import dead_ends
from quicksilver.constrain.source import FormatKind, Layout, Policy, ResponseFormat, Thinking
from quicksilver.constrain.validate import pick_draft
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar

# Without `\u`: a property name written with it would not match the names in the schema.
ESCAPES = 'nrbtf\\"'
SEPARATORS = {Layout.COMPACT: (",", ":"), Layout.SPACED: (", ", ": ")}
NOTHING = {"type": "null", "enum": [0]}

# One entry of llguidance's list of grammars.
Grammar = dict[str, Any]


def compile_response_format(wanted: ResponseFormat) -> ConstraintSpec:
    """The constraint for an answer of this format."""
    body, needs_validation = write_body(wanted, is_whole=wanted.thinking is None)
    if wanted.thinking is None:
        grammars = [body]
    else:
        lark = "\n".join(["start: think @answer", *thinking_rules(wanted.thinking), TEXT])
        grammars = [{"lark_grammar": lark}, {"name": "answer", **body}]
    named = "pattern" if wanted.kind is FormatKind.REGEX else "grammar"
    return trial_compile(grammars, named, special_ids=tags_of(wanted.thinking), needs_validation=needs_validation)


def write_body(wanted: ResponseFormat, *, is_whole: bool = False) -> tuple[Grammar, bool]:
    """A grammar for the answer without thinking, and whether the finished answer needs validation. `is_whole` means
    that the answer is all that is generated."""
    if wanted.kind is FormatKind.JSON_SCHEMA:
        return write_schema(wanted.value, wanted.policy, wanted.layout, frozenset() if is_whole else None)
    return WRITERS[wanted.kind](wanted), False


def write_schema(
    schema: Any, policy: Policy, layout: Layout, guardless: Set[str] | None = None
) -> tuple[Grammar, bool]:
    """A grammar for the instances of a schema, and whether they need validation. `guardless` has the JSON pointers of
    arrays that no guard can keep unique at run time; None means that the text has no guard."""
    limit_schema_size(schema)
    rewriter = Rewriter(Document(schema, pick_draft(schema)), policy, guardless)
    rewritten = rewriter.schema()
    if guardless is not None and rewriter.needs_guard and (found := dead_ends(rewritten)):
        return write_schema(schema, policy, layout, guardless | found)
    return json_grammar(rewritten, layout), rewriter.needs_validation


def json_grammar(schema: Json, layout: Layout) -> Grammar:
    """A rewritten schema for llguidance, with options for white space and escapes."""
    item, key = SEPARATORS[layout]
    options = {
        "whitespace_flexible": False,
        "json_allowed_escapes": ESCAPES,
        "item_separator": item,
        "key_separator": key,
    }
    body = schema if isinstance(schema, dict) else ({} if schema else NOTHING)
    return {"json_schema": {**body, "x-guidance": options}}


def write_object(wanted: ResponseFormat) -> Grammar:
    return json_grammar({"type": "object"}, wanted.layout)


def write_regex(wanted: ResponseFormat) -> Grammar:
    """The expression matches the whole answer. Rust syntax, without look-around."""
    pattern = text_of(wanted)
    limit_regex_size(pattern)
    return {"lark_grammar": f"start: /{regex_to_lark(pattern, '')}/"}


def write_lark(wanted: ResponseFormat) -> Grammar:
    grammar = text_of(wanted)
    refuse_reserved_syntax(grammar)
    return {"lark_grammar": grammar}


def write_choice(wanted: ResponseFormat) -> Grammar:
    labels = wanted.value
    if not isinstance(labels, list | tuple) or not labels or not all(isinstance(label, str) for label in labels):
        raise InvalidGrammar("`choice` must be a list of one or more strings.")
    if len(labels) > MAX_CHOICES:
        raise too_big("labels in `choice`", MAX_CHOICES, len(labels))
    if "" in labels:
        raise InvalidGrammar("`choice` has an empty label.")
    text = "start: " + " | ".join(quoted(label) for label in dict.fromkeys(labels))
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise too_big("bytes in `choice`", MAX_GRAMMAR_BYTES, len(text.encode()))
    return {"lark_grammar": text}


def text_of(wanted: ResponseFormat) -> str:
    if not isinstance(wanted.value, str) or not wanted.value:
        raise InvalidGrammar(f"`{wanted.kind}` must be a string that is not empty.")
    return wanted.value


WRITERS: dict[FormatKind, Callable[[ResponseFormat], Grammar]] = {
    FormatKind.JSON_OBJECT: write_object,
    FormatKind.REGEX: write_regex,
    FormatKind.LARK: write_lark,
    FormatKind.CHOICE: write_choice,
}


def tags_of(thinking: Thinking | None) -> list[int]:
    """The special tokens that a thinking section uses."""
    marks = [] if thinking is None else [thinking.open, thinking.close]
    return [mark for mark in marks if isinstance(mark, int)]
