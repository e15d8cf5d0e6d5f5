"""Text with holes: fixed parts are kept, holes are bounded."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.pinned import Hole, pinned_grammar
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.core import ConstraintSpec
from tests.constrain.walks import accepts


def spec(*parts: str | Hole) -> ConstraintSpec:
    return compile_response_format(ResponseFormat(FormatKind.LARK, pinned_grammar(parts)))


LETTER = ("Dear ", Hole(max_chars=10), ",\nyour order ", Hole(2, 4), ' is "ready".\n')


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('Dear Ada,\nyour order 1234 is "ready".\n', True),
        ('Dear Ada, Bob,\nyour order 12 is "ready".\n', True),
        ('Dear Ada,\nyour order 1 is "ready".\n', False),
        ('Dear Ada,\nyour order 12345 is "ready".\n', False),
        ('Dear ,\nyour order 1234 is "ready".\n', False),
        ('Dear Ada\nLovelace,\nyour order 1234 is "ready".\n', False),
        ("Dear Ada,\nyour order 1234 is ready.\n", False),
        ("Dear Ada", False),
    ],
)
def test_fixed_parts_and_bounds(text: str, is_allowed: bool) -> None:
    assert accepts(spec(*LETTER), text) is is_allowed


def test_a_hole_may_have_lines() -> None:
    assert accepts(spec("a", Hole(is_multiline=True), "b"), "a1\n2\nb")


@pytest.mark.parametrize("fixed", ['"', "\\", "<|im_end|>", "/[a]/", "// x", "@x", "é😀", "%llguidance {}", "\t\x01"])
def test_fixed_text_is_never_syntax(fixed: str) -> None:
    assert accepts(spec(fixed, Hole(), fixed), f"{fixed}x{fixed}")
    assert not accepts(spec(fixed, Hole(), fixed), f"{fixed}x")
