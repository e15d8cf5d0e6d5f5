"""Shared fields at their bounds and one beyond."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from quicksilver.server.http import fields as wire
from quicksilver.server.http.fields import (
    DecoderBody,
    GenerationBody,
    ModelBody,
    OwnWire,
    TextPart,
    Wire,
    bounded,
    join_text,
    tame,
)


def accepts(kind: Any, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


BOUNDS: list[tuple[Any, Any, Any]] = [
    (wire.OutputTokens, wire.MAX_OUTPUT_TOKENS, wire.MAX_OUTPUT_TOKENS + 1),
    (wire.OutputTokens, 1, 0),
    (wire.AnyOutputTokens, 0, -1),
    (wire.PromptLogprobs, wire.MAX_TOP_LOGPROBS, wire.MAX_TOP_LOGPROBS + 1),
    (wire.Temperature, 2.0, 2.01),
    (wire.Probability, 1.0, 1.01),
    (wire.Penalty, -2.0, -2.01),
    (wire.RepetitionPenalty, 10.0, 0.0),
    (wire.TopK, -1, -2),
    (wire.Seed, wire.MAX_SAFE_INT, wire.MAX_SAFE_INT + 1),
    (wire.Stop, ["a"] * wire.MAX_STOPS, ["a"] * (wire.MAX_STOPS + 1)),
    (wire.Stop, "a" * wire.MAX_STOP_CHARS, "a" * (wire.MAX_STOP_CHARS + 1)),
    (wire.Stop, "a", ""),
    (wire.CodeStop, ["a"] * wire.MAX_CODE_STOPS, ["a"] * (wire.MAX_CODE_STOPS + 1)),
    (wire.LogitBias, {str(i): 1.0 for i in range(1024)}, {str(i): 1.0 for i in range(1025)}),
    (wire.LogitBias, {"999999999": 100.0}, {"1000000000": 1.0}),
    (wire.LogitBias, {"1": -100.0}, {"1": -100.5}),
    (wire.LogitBias, {}, {"a": 1.0}),
    (wire.Metadata, {"k" * 64: "v" * 512}, {"k" * 65: "v"}),
    (wire.Metadata, {str(i): "" for i in range(16)}, {str(i): "" for i in range(17)}),
    (wire.FunctionName, "a" * 64, "a" * 65),
    (wire.FunctionName, "get_weather-2", "get weather"),
    (wire.SpeakerName, "Ann Lee", "Ann\nsystem"),
    (wire.Off, False, True),
    (ModelBody, {"model": "m" * 256}, {"model": "m" * 257}),
    (TextPart, {"type": "text", "text": "a"}, {"type": "image_url"}),
]


@pytest.mark.parametrize(("kind", "good", "bad"), BOUNDS)
def test_values_at_the_bound_are_read_and_values_beyond_it_refused(kind: Any, good: Any, bad: Any) -> None:
    assert accepts(kind, good)
    assert not accepts(kind, bad)


@pytest.mark.parametrize("value", [True, "16", 16.5, None])
def test_an_integer_is_a_whole_number(value: Any) -> None:
    assert TypeAdapter(wire.OutputTokens).validate_python(16.0) == 16
    assert not accepts(wire.OutputTokens, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(value: float) -> None:
    class Body(Wire):
        temperature: wire.Temperature

    assert not accepts(Body, {"temperature": value})


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth - 1):
        value = [value]
    return value


def test_free_json_is_bounded_in_nodes_depth_and_integers() -> None:
    assert tame([0] * (wire.MAX_JSON_NODES - 1))
    assert tame(nested(wire.MAX_JSON_DEPTH)) is not None
    assert tame({"a": wire.MAX_SAFE_INT}) is not None
    for value in ([0] * wire.MAX_JSON_NODES, nested(wire.MAX_JSON_DEPTH + 1), {"a": [wire.MAX_SAFE_INT + 1]}):
        with pytest.raises(ValueError, match=r"more than|beyond"):
            tame(value)
    assert bounded({"a": wire.MAX_SAFE_INT + 1}) is not None
    for value in ([0] * wire.MAX_JSON_NODES, nested(wire.MAX_JSON_DEPTH + 1)):
        with pytest.raises(ValueError, match="more than"):
            bounded(value)


def test_null_and_the_empty_name_select_the_default_model() -> None:
    assert ModelBody.model_validate({"model": None}).model == ModelBody.model_validate({}).model == ""


def test_unknown_fields_are_named_but_not_read() -> None:
    body = GenerationBody.model_validate({"model": "m", "other": 1})
    body.keep_source(b"{}", ["model", "other"])
    assert body.ignored == ("other",)
    assert body.raw == b"{}"


def test_unknown_fields_of_an_own_object_are_refused() -> None:
    class Own(OwnWire):
        a: int = 0

    assert accepts(Own, {"a": 1})
    assert not accepts(Own, {"b": 1})


def test_text_parts_are_joined() -> None:
    parts = [TextPart(type="text", text="a"), TextPart(type="refusal", refusal="b"), TextPart(type="text")]
    assert join_text(parts) == "ab"
    assert join_text("c") == "c"
    assert join_text(None) == ""


def test_a_decoder_is_a_name_or_an_object() -> None:
    assert DecoderBody.model_validate("ar") == DecoderBody(name="ar")
    assert DecoderBody.model_validate({"name": "verify", "canvas_len": 8.0}).canvas_len == 8
    assert not accepts(DecoderBody, "fast")
    assert not accepts(DecoderBody, 3)
    assert not accepts(DecoderBody, {"name": "ar", "speed": 1})
