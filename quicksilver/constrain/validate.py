"""Validates finished output against the schema as it was sent, with jsonschema-rs.

Shares no code with the grammars. `format` is an annotation, and no reference is fetched. Patterns run in linear time,
or with a bounded number of steps in schemas with look-around or back-references.
The draft is the one that `$schema` names, otherwise the newest under which the schema is well formed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs

from quicksilver.constrain.compile.rewrite.vocabulary import Draft, Json, declared_draft
from quicksilver.errors import InvalidGrammar

VALIDATORS = {
    Draft.FOUR: jsonschema_rs.Draft4Validator,
    Draft.SIX: jsonschema_rs.Draft6Validator,
    Draft.SEVEN: jsonschema_rs.Draft7Validator,
    Draft.Y2019: jsonschema_rs.Draft201909Validator,
    Draft.Y2020: jsonschema_rs.Draft202012Validator,
}
# Stands for the value in error messages: a refused answer is not charged, so its text must not be quoted.
MASK = "the value"
# Linear time first; backtracking takes at most 20 ms for a text of 100,000 characters.
ENGINES = (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000))
# Drafts to try, in this order, without `$schema`.
FALLBACKS = (Draft.Y2020, Draft.SEVEN, Draft.FOUR)


def validate_output(schema: Json, text: str) -> str | None:
    """Why `text` is not an instance of `schema`, or None when it is one."""
    try:
        instance = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    fault = next(cached_validator(json.dumps(schema)).iter_errors(instance), None)
    if fault is None:
        return None
    return f"{fault.message} at '/{'/'.join(str(step) for step in fault.instance_path)}'"


def pick_draft(schema: Json) -> Draft:
    """The draft of `schema`; raises InvalidGrammar if the schema is not well formed under any."""
    complaints: list[InvalidGrammar] = []
    for draft in (declared,) if (declared := declared_draft(schema)) else FALLBACKS:
        try:
            build(schema, draft)
        except InvalidGrammar as error:
            complaints.append(error)
        else:
            return draft
    raise complaints[0]


def build(schema: Json, draft: Draft) -> Any:
    """A validator; raises InvalidGrammar that names the keyword at fault."""
    refusal: InvalidGrammar | None = None
    for engine in ENGINES:
        try:
            return VALIDATORS[draft](schema, validate_formats=False, offline=True, pattern_options=engine, mask=MASK)
        except jsonschema_rs.ValidationError as error:
            refusal = refusal or malformed(error)
        except ValueError as error:
            raise InvalidGrammar(f"The schema cannot be read: {str(error)[:300]}.") from error
    raise refusal or InvalidGrammar("The schema cannot be read.")


def malformed(error: jsonschema_rs.ValidationError) -> InvalidGrammar:
    """A refusal that names the keyword which breaks the rules of its draft."""
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return InvalidGrammar(f"`$ref` cannot be followed: {error.message[:300]}.")
    words = [step for step in error.instance_path if isinstance(step, str)]
    path = "/".join(str(step) for step in error.instance_path)
    return InvalidGrammar(f"`{words[-1] if words else 'schema'}` is malformed at '/{path}': {error.message[:300]}.")


@lru_cache(maxsize=256)
def cached_validator(schema_text: str) -> Any:
    schema = json.loads(schema_text)
    return build(schema, pick_draft(schema))


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
