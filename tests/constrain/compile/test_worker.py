"""One compile process, without the process."""

from __future__ import annotations

import io

import msgspec
import pytest

from quicksilver.constrain.compile.worker import HEADER, Outcome, answer, serve
from quicksilver.constrain.source import FormatKind, ResponseFormat, encode

GOOD = encode(ResponseFormat(FormatKind.JSON_OBJECT))


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def test_frames_in_and_frames_out() -> None:
    out = io.BytesIO()
    serve(io.BytesIO(frame(GOOD) + frame(GOOD)), out)
    data, outcomes = out.getvalue(), []
    while data:
        (length,) = HEADER.unpack(data[: HEADER.size])
        outcomes.append(data[HEADER.size : HEADER.size + length])
        data = data[HEADER.size + length :]
    assert outcomes[0] == b"{}"
    assert [bool(msgspec.json.decode(text, type=Outcome).grammar) for text in outcomes[1:]] == [True, True]


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b'{"format": {"kind": "nonsense"}}',
        encode(ResponseFormat(FormatKind.REGEX, "(")),
        encode(ResponseFormat(FormatKind.JSON_SCHEMA, {"$ref": "#/x", "x": {"properties": {"a": 3}}})),
    ],
)
def test_whatever_is_wrong_with_a_source_is_an_outcome(data: bytes) -> None:
    assert answer(data).error


@pytest.mark.parametrize("fault", [MemoryError(), RecursionError(), KeyError("x"), TypeError("y")])
def test_a_fault_of_the_compiler_is_an_outcome(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise fault

    monkeypatch.setattr("quicksilver.constrain.compile.worker.compile_source", broken)
    assert answer(GOOD).error
