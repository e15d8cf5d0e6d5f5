"""Trial compile, the last step of every compilation: llguidance must accept the grammar, and it must have a completion.

Errors of llguidance become refusals that name a keyword. The grammar is compiled over single bytes, which costs about
as much as in the engine, so a grammar that exceeds a limit is refused before the engine receives it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from quicksilver.constrain.alphabet import Alphabet, plain_alphabet
from quicksilver.constrain.shortest import TooCostly, shortest
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar

# Bounds on one step of the automaton, here and in the engine. Real schemas stay below them. A slow step of one request
# delays every request of the batch.
LIMITS = LLParserLimits(max_items_in_row=5_000, step_max_items=3_000, verbose_errors=False)

# Substrings of the compiler's errors, and the keyword that a refusal names for each.
KEYWORDS = (
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
    ("too large", "anyOf"),
    ("too big", "pattern"),
    ("Parser Error", "anyOf"),
)
# The beginning of the compiler's errors about Lark text: a line with a column, or no rule to begin with.
IN_LARK = re.compile(r"(at )?\d+\(\d+\): |no start rule")
# Prefix of the compiler's errors about schemas without any instance.
UNSATISFIABLE = "Unsatisfiable schema: "


def trial_compile(
    grammars: list[dict[str, Any]], field: str, *, special_ids: Iterable[int] = (), needs_validation: bool = False
) -> ConstraintSpec:
    """The constraint for the grammars; raises InvalidGrammar if llguidance refuses them. See `refusal_of`."""
    text = json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))
    alphabet = plain_alphabet(sorted(set(special_ids)))
    matcher = LLMatcher(alphabet.tokenizer, text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise refusal_of(matcher.get_error(), field)
    if not can_finish(matcher, alphabet):
        raise InvalidGrammar("The grammar has no text that satisfies it.")
    return ConstraintSpec(text, needs_validation=needs_validation)


def can_finish(matcher: LLMatcher, alphabet: Alphabet) -> bool:
    """False only if no token is allowed at the start: a completion that the search does not find may still exist."""
    try:
        is_found = shortest(matcher, alphabet) is not None
    except TooCostly:
        is_found = False
    return is_found or any(matcher.compute_bitmask())


def refusal_of(error: str, field: str = "grammar") -> InvalidGrammar:
    """A refusal for an error of llguidance, with the keyword that caused it. An error in Lark text names `field`."""
    reason = re.search("^error: (.+)", error, re.MULTILINE)  # of the regex parser; its first line is a heading
    first_line = (reason[1] if reason else error.split("\n", 1)[0])[:300]
    if "NoExtension" in error:
        return InvalidGrammar("A rule or a `$ref` only refers back to itself, so no finite text satisfies the grammar.")
    keyword = field if IN_LARK.match(error) else next((name for words, name in KEYWORDS if words in error), "schema")
    if first_line.startswith(UNSATISFIABLE):
        return InvalidGrammar(f"`{keyword}`: no value satisfies the schema: {first_line.removeprefix(UNSATISFIABLE)}.")
    return InvalidGrammar(f"`{keyword}` cannot be enforced: {first_line}.")
