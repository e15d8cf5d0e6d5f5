"""Proofs about regular expressions, by the regex engine of llguidance, so that they agree with the grammar.

False means "not proved". Nothing is proved for classes that validators interpret differently (`\\s`, `\\b`, `\\p`).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

AMBIGUOUS = ("\\s", "\\S", "\\b", "\\B", "\\p", "\\P", "\\x", "\\u", "(?", "[[", "&&")


def no_string(facets: list[dict[str, Any]]) -> bool:
    """Whether it is proved that no string satisfies all facets, each a `pattern` or a length."""
    return all(is_portable(str(facet.get("pattern", ""))) for facet in facets) and is_empty(facets)


def never_matches(pattern: str, text: str) -> bool:
    """Whether it is proved that `text` does not match."""
    return is_portable(pattern) and is_empty([{"pattern": pattern}, {"enum": [text]}])


def is_portable(pattern: str) -> bool:
    return not any(part in pattern for part in AMBIGUOUS)


def is_empty(schemas: list[dict[str, Any]]) -> bool:
    """Whether llguidance proves that no string satisfies all schemas."""
    return _is_empty(json.dumps({"type": "string", "allOf": schemas}))


@lru_cache(maxsize=4096)
def _is_empty(schema: str) -> bool:
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return error.startswith("Unsatisfiable schema")
