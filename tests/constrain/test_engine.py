"""Grammars in the engine with a tiny random model: finished answers are valid with every decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import ToolCallFormat, ToolChoice, ToolSignature, ToolTags
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request
from quicksilver.engine.engine import Engine
from quicksilver.model.transformer import Transformer
from tests.constrain.conftest import special
from tests.constrain.walks import schema_spec
from tests.support.small_tokenizer import VOCAB_SIZE
from tests.support.tiny import TINY, answers, decode_params, drafting_model, finish_all, tiny_engine

ENDS = (special("<|im_end|>"), special("<|endoftext|>"))
OPEN, CLOSE = special("<tool_call>"), special("</tool_call>")
DECODERS = ["ar", "verify", "confidence", "edit"]
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]}, "ok": {"type": "boolean"}},
        "required": ["id", "kind", "ok"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
]
UNIQUE: list[Any] = [
    {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True},
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": list("abcdefgh")}, "minItems": 6, "uniqueItems": True}
        },
        "required": ["tags"],
        "additionalProperties": False,
    },
]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return drafting_model(replace(TINY, vocab_size=VOCAB_SIZE), seed=3)


@pytest.fixture
def engine(model: Transformer, grammars: Grammars) -> Engine:
    engine = tiny_engine(model=model)
    engine.constraints = grammars.constraint
    return engine


def run(engine: Engine, specs: list[ConstraintSpec], **changes: Any) -> list[tuple[list[int], Delta]]:
    """The answers to one request for each constraint, all in flight together, with their last deltas."""
    name = changes.pop("name")
    params = decode_params(name, canvas_len=8, threshold=0.3, stop_ids=ENDS, **changes)
    for i, spec in enumerate(specs):
        engine.add(Request(str(i), tuple(range(60, 80)), replace(params, seed=i), constraint=spec))
    deltas = finish_all(engine)
    return [(answers(deltas)[str(i)], deltas[str(i)][-1]) for i in range(len(specs))]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("room", [48, 90])
def test_every_answer_is_valid(engine: Engine, name: str, temperature: float, room: int) -> None:
    found = run(engine, [schema_spec(s) for s in SCHEMAS], name=name, temperature=temperature, max_new_tokens=room)
    for schema, (tokens, last) in zip(SCHEMAS, found, strict=True):
        assert last.finish in (FinishReason.STOP, FinishReason.LENGTH), last.error
        assert validate_output(schema, bytes(tokens).decode()) is None


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("room", [24, 48, 90])
def test_a_model_that_repeats_strings_writes_unique_ones(engine: Engine, name: str, room: int) -> None:
    """The bias makes it write an `a`, a quote and a comma wherever it may."""
    bias = {ord("a"): 60.0, ord('"'): 50.0, ord(","): 40.0}
    found = run(engine, [schema_spec(s) for s in UNIQUE], name=name, max_new_tokens=room, logit_bias=bias)
    for schema, (tokens, last) in zip(UNIQUE, found, strict=True):
        assert last.finish in (FinishReason.STOP, FinishReason.LENGTH), last.error
        if room > 24:
            assert validate_output(schema, bytes(tokens).decode()) is None


def test_unique_strings_under_verify_are_those_of_ar(engine: Engine) -> None:
    bias = {ord("a"): 3.0, ord('"'): 4.0, ord(","): 5.0}
    plain, drafted = (
        run(engine, [schema_spec(s) for s in UNIQUE], name=name, max_new_tokens=60, logit_bias=bias)
        for name in ("ar", "verify")
    )
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in plain]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_verify_is_the_masked_autoregressive_text(engine: Engine, temperature: float) -> None:
    specs = [schema_spec(s) for s in SCHEMAS]
    plain = run(engine, specs, name="ar", temperature=temperature, max_new_tokens=60)
    drafted = run(engine, specs, name="verify", temperature=temperature, max_new_tokens=60)
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in plain]


@pytest.mark.parametrize("name", DECODERS)
def test_a_required_call_is_always_made(engine: Engine, name: str) -> None:
    plan = ToolCallFormat(
        (ToolSignature("look", SCHEMAS[0], is_strict=True), ToolSignature("now")),
        ToolTags(OPEN, CLOSE),
        ToolChoice.REQUIRED,
        1,
    )
    ((tokens, _),) = run(engine, [compile_tools(plan)], name=name, temperature=1.2, max_new_tokens=120)
    assert (tokens[0], tokens[-1]) == (OPEN, CLOSE)
    call = {
        "anyOf": [
            {"properties": {"name": {"const": "look"}, "arguments": SCHEMAS[0]}},
            {"properties": {"name": {"const": "now"}, "arguments": {"maxProperties": 0}}},
        ]
    }
    assert validate_output(call, bytes(tokens[1:-1]).decode()) is None


@pytest.mark.parametrize("name", DECODERS)
def test_too_few_tokens_finish_with_length_and_a_valid_prefix(engine: Engine, grammars: Grammars, name: str) -> None:
    spec = schema_spec(SCHEMAS[0])
    ((tokens, last),) = run(engine, [spec], name=name, max_new_tokens=10)
    assert last.finish is FinishReason.LENGTH
    assert grammars.constraint(spec).legal_prefix(tokens) == len(tokens) == 10
