"""Hostile schemas, regular expressions and Lark grammars: each is accepted or refused within the limits of a process,
and none admits a special token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import numpy as np
import pytest

from quicksilver.constrain.compile.pool import CompilePool, PoolConfig
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar
from tests.support.small_tokenizer import SPECIALS, VOCAB_SIZE, small_tokenizer

HANG_GUARD_S = 100.0
REGEX_BOMBS = [
    "(a+)+$",
    "(a|aa)+b",
    "(.*)*x",
    "((a{0,1000}){0,1000}){0,1000}",
    "a{999999999}",
    "(a?){5000}a{5000}",
    "[\\s\\S]{0,100000}[a-z]{0,100000}",
    "(" * 2000 + "a" + ")" * 2000,
    "|".join(f"{i}.*{i}" for i in range(5000)),
    "\\p{L}{1,10000}\\p{N}{1,10000}",
    "(?i:" + "é" * 5000 + ")",
    "(?=a)b",
    "(a)\\1",
    "[",
    "\\",
    "\x00\x01",
]
LARK_BOMBS = [
    "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)), 'r40: "a"']),
    'start: a+\na: (b | "a")*\nb: (a | "b")*',
    'start: s\ns: s s s | "x" |',
    'start: "a" start',
    "start: /" + "(a*)*" * 500 + "/",
    "start: X\nX: X",
    "start: " + " | ".join(f'"{i}" t{i}' for i in range(3000)),
    "%import common.WORD\nstart: WORD",
    "start: /.*/ & ~/.*/",
]
SCHEMA_BOMBS: list[object] = [
    {"pattern": "(a+)+$", "type": "string"},
    {"patternProperties": {f"^{i}.*(a+)+{i}$": {} for i in range(500)}},
    {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 100_000},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"not": {"not": {"not": {"$ref": "#"}}}},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 12}}, "type": "array", "uniqueItems": True, "minItems": 2,
     "items": {"$ref": "#/$defs/a"}},
    {"type": "integer", "minimum": -(10**400), "maximum": 10**400},
    {"enum": [10**400]},
    {"multipleOf": 1e-300, "type": "number"},
]  # fmt: skip
BOMBS = [
    *(ResponseFormat(FormatKind.REGEX, text) for text in REGEX_BOMBS),
    *(ResponseFormat(FormatKind.LARK, text) for text in LARK_BOMBS),
    *(ResponseFormat(FormatKind.JSON_SCHEMA, schema) for schema in SCHEMA_BOMBS),
]


@pytest.fixture
async def pool() -> AsyncIterator[CompilePool]:
    pool = CompilePool(PoolConfig(deadline_s=HANG_GUARD_S))
    await pool.start()
    yield pool
    await pool.stop()


async def test_every_bomb_is_accepted_or_refused_and_the_pool_stays_usable(pool: CompilePool) -> None:
    outcomes = await asyncio.gather(*(pool.compile(bomb, "attacker") for bomb in BOMBS), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ConstraintSpec, InvalidGrammar}
    assert (await pool.compile(ResponseFormat(FormatKind.JSON_OBJECT), "neighbour")).grammar


@pytest.mark.parametrize("grammar", ["start: <|im_end|>", "start: <[257]>", 'start: "a" <think>', "start: <[0-300]>"])
def test_a_grammar_cannot_name_a_special_token(grammar: str) -> None:
    with pytest.raises(InvalidGrammar, match="special token"):
        compile_response_format(ResponseFormat(FormatKind.LARK, grammar))


@pytest.mark.parametrize("name", SPECIALS)
def test_the_name_of_a_special_token_is_plain_text(name: str) -> None:
    """In a regex, a Lark string, a Lark regex, a label, a property name and a constant."""
    quoted = '"' + name.replace('"', '\\"') + '"'
    sources = [
        ResponseFormat(FormatKind.REGEX, re.escape(name)),
        ResponseFormat(FormatKind.LARK, f"start: {quoted}"),
        ResponseFormat(FormatKind.LARK, "start: /" + re.escape(name).replace("/", "\\/") + "/"),
        ResponseFormat(FormatKind.CHOICE, [name]),
        ResponseFormat(FormatKind.JSON_SCHEMA, {"const": name}),
        ResponseFormat(FormatKind.JSON_SCHEMA, {"properties": {name: {"const": 1}}, "required": [name],
                                                "type": "object", "additionalProperties": False}),
    ]  # fmt: skip
    tokenizer = small_tokenizer()
    grammars = Grammars(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE)
    for source in sources:
        text = completed(grammars, compile_response_format(source))
        assert name.encode() in text


def completed(grammars: Grammars, spec: ConstraintSpec) -> bytes:
    """The only text of a grammar, one byte token at a time; fails if a special token is ever allowed before the end."""
    constraint = grammars.constraint(spec)
    text = bytearray()
    while not constraint.must_stop():
        row = np.zeros((1, -(-VOCAB_SIZE // 32)), dtype=np.int32)
        constraint.write_masks((), memoryview(row))
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        specials = [int(i) for i in allowed if i >= 256]
        if constraint.can_stop():
            break
        assert not specials
        constraint.advance([int(allowed[0])])
        text.append(int(allowed[0]))
    return bytes(text)
