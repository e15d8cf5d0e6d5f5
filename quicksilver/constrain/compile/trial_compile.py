"""The last step of every compilation: the grammar compiler accepts the text, and the grammar can be completed.

Errors of the compiler become refusals that name a keyword. The grammar is built and walked over plain bytes, which
costs what it will cost the engine, and shows limits before a request meets them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from quicksilver.constrain.alphabet import Alphabet, plain_alphabet
from quicksilver.constrain.shortest import TooCostly, shortest
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar

LIMITS = LLParserLimits(max_items_in_row=5_000, step_max_items=3_000, verbose_errors=False)
"""Bounds on a single step of the automaton, the same wherever a grammar is built: what real schemas need, and no more,
since a step of one request is a step of all."""

BLAME = (
    ("patternProperty", "patternProperties"),
    ("Properties only supported", "minProperties"),
    ("circular references", "$ref"),
    ("intersection", "allOf"),
    ("multipleOf", "multipleOf"),
    ("lookaround", "pattern"),
    ("regex", "pattern"),
    ("Regex", "pattern"),
    ("required", "required"),
    ("minItems", "minItems"),
    ("range", "minimum"),
    ("anyOf", "anyOf"),
    ("types", "type"),
    ("schema is false", "not"),
    ("special token", "<...>"),
    ("Too many items", "grammar"),
    ("too many expressions", "pattern"),
    ("NoExtension", "$ref"),
    ("too large", "anyOf"),
    ("too big", "pattern"),
    ("Parser Error", "anyOf"),
)
"""Words of the compiler's errors, and the keyword to name for each."""


def prove(
    grammars: list[dict[str, Any]], *, special_ids: Iterable[int] = (), needs_validation: bool = False
) -> ConstraintSpec:
    """The constraint, or InvalidGrammar."""
    text = json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))
    alphabet = plain_alphabet(sorted(set(special_ids)))
    matcher = LLMatcher(alphabet.tokenizer, text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise refusal(matcher.get_error())
    if not can_finish(matcher, alphabet):
        raise InvalidGrammar("The grammar has no text that satisfies it.")
    return ConstraintSpec(text, needs_validation=needs_validation)


def can_finish(matcher: LLMatcher, alphabet: Alphabet) -> bool:
    """False only if nothing at all may come first; a way out that is not found may still exist."""
    try:
        is_found = shortest(matcher, alphabet) is not None
    except TooCostly:
        is_found = False
    return is_found or any(matcher.compute_bitmask())


def refusal(error: str) -> InvalidGrammar:
    """The compiler's complaint with a keyword in front."""
    first_line = error.split("\n", 1)[0][:300]
    keyword = next((name for words, name in BLAME if words in error), "schema")
    return InvalidGrammar(f"`{keyword}` cannot be enforced: {first_line}.")
