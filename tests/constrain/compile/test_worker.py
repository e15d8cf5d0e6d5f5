"""The program of a compile process, run inside the test."""

from __future__ import annotations

import io

import msgspec
import pytest

from quicksilver.constrain.compile.frames import HEADER
from quicksilver.constrain.compile.worker import Outcome, outcome_of, serve
from quicksilver.constrain.source import FormatKind, ResponseFormat, encode

GOOD = encode(ResponseFormat(FormatKind.JSON_OBJECT))


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def test_every_frame_is_answered_and_an_empty_one_is_a_heartbeat() -> None:
    out = io.BytesIO()
    serve(io.BytesIO(frame(GOOD) + frame(b"") + frame(GOOD)), out)
    data, outcomes = out.getvalue(), []
    while data:
        (length,) = HEADER.unpack(data[: HEADER.size])
        outcomes.append(data[HEADER.size : HEADER.size + length])
        data = data[HEADER.size + length :]
    ready, first, heartbeat, second = outcomes
    assert ready == heartbeat == b""
    assert [bool(msgspec.json.decode(text, type=Outcome).grammar) for text in (first, second)] == [True, True]


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b'{"format": {"kind": "nonsense"}}',
        encode(ResponseFormat(FormatKind.REGEX, "(")),
        encode(ResponseFormat(FormatKind.JSON_SCHEMA, {"$ref": "#/x", "x": {"properties": {"a": 3}}})),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(data: bytes) -> None:
    assert outcome_of(data).error


@pytest.mark.parametrize("fault", [MemoryError(), RecursionError(), KeyError("x"), TypeError("y")])
def test_an_exception_in_the_compiler_is_a_refusal(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise fault

    monkeypatch.setattr("quicksilver.constrain.compile.worker.compile_source", broken)
    assert outcome_of(GOOD).error
