"""Formats admit only what a strict validator accepts; complements exclude exactly the listed strings."""

from __future__ import annotations

import random

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.constrain.compile.rewrite.patterns import BASE64, FORMATS, format_pattern, length_pattern, other_than
from tests.constrain.walks import admits, automaton, chance_text, compact, finishes, schema_spec

GOOD = {
    "date": ["2024-02-29", "0001-01-01", "2000-02-29"],
    "time": ["23:59:59Z", "00:00:00.5+02:00"],
    "date-time": ["2024-05-06T07:08:09Z"],
    "duration": ["P1D", "P2Y3M", "PT1H30M", "P3DT4S", "P5W", "P1Y2M3DT4H5M6S"],
    "email": ["a.b@example.com", "te.s.t@mail.a.example.co.uk", "o'neil+x~y@example.com"],
    "hostname": ["example.com", "a", "a-b.c1.eu-west-1.compute.example.co.uk"],
    "ipv4": ["0.0.0.0", "255.255.255.255"],
    "ipv6": ["::", "::1", "2001:db8::1", "1:2:3:4:5:6:7:8", "d6::", "1::4:5", "::ffff:192.168.0.1"],
    "uri": [
        *("https://example.com/a?b=c#d", "urn:isbn:123", "mailto:a@b.c", "file:///etc/hosts", "http://127.0.0.1:8080/"),
        *("https://docs.api.example.co.uk:50000/v1", "ldap://[2001:db8::7]/c=GB?objectClass?one"),
    ],
    "iri": ["https://example.com/wîkï?q=é#ñ"],
    "uri-reference": ["/a/b", "a/b", "../x", "#top", "https://x.test", "//x.test/a", "@scope/name"],
    "uri-template": ["https://x.test/{id}/y", "/a/{b}", "/search{?q,lang}", "{+path}/here", "{list*}", "{var:3}"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "json-pointer": ["", "/a~0b/c~1d"],
    "relative-json-pointer": ["0#", "1/a"],
    "regex": ["^[a-z]+$", "(a|b)*", r"\d{3}-\w+"],
}
BAD = {
    "date": "2023-02-29",
    "time": "24:00:00Z",
    "ipv4": "256.1.1.1",
    "email": "a@",
    "hostname": "xn--x",
    "ipv6": "1::2::3",
    "uri": "http://[::1",
    "uuid": "123",
    "regex": "(",
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in GOOD.items() for text in texts])
def test_ordinary_values_of_a_format_pass(name: str, text: str) -> None:
    assert admits({"type": "string", "format": name}, text) == [True]


@pytest.mark.parametrize(("name", "text"), BAD.items())
def test_wrong_values_of_a_format_do_not(name: str, text: str) -> None:
    assert admits({"type": "string", "format": name}, text) == [False]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_random_values_of_a_format_satisfy_a_strict_validator(name: str) -> None:
    schema = {"type": "string", "format": name}
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    matcher, rng = automaton(schema_spec(schema)), random.Random(name)
    texts = [chance_text(matcher.deep_copy(), rng, 120) for _ in range(25)]
    finished = [text for text in texts if text is not None]
    assert finished
    assert [text for text in finished if not validator.is_valid(text[1:-1])] == []


def test_unknown_formats_have_no_pattern() -> None:
    assert format_pattern("color") is None


def test_lengths() -> None:
    names = {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}}
    assert admits(names, {"": 1}, {"a": 1}, {"a\n": 1}, {"abc": 1}) == [False, True, True, False]
    assert length_pattern(3, None) == "^(?s:.{3,})$"


def test_base64_has_canonical_padding() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "contentEncoding": "base64"}
    assert admits(schema, "", "QQ==", "QUI=", "QUJD", "QR==", "Q", "QQ=") == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert BASE64.startswith("^")


LABELS = st.lists(st.text(st.sampled_from('ab"\\\u00e9.\n'), max_size=4), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(LABELS, LABELS)
def test_a_complement_leaves_out_exactly_the_listed_strings(listed: list[str], probes: list[str]) -> None:
    pattern = other_than(listed)
    assert pattern is not None
    matcher = automaton(schema_spec({"type": "string", "not": {"enum": listed}}))

    for text in [*listed, *probes]:
        assert finishes(matcher.deep_copy(), compact(text)) is (text not in listed)


def test_a_long_list_has_no_complement() -> None:
    assert other_than(["x" * 300]) is None
    assert other_than([f"label number {i}" for i in range(200)]) is None
