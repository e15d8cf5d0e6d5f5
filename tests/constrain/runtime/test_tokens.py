"""Tables of a vocabulary: bytes, special tokens, widths."""

from __future__ import annotations

import json

import pytest

from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.runtime.tokens import Tokens, bits_of
from quicksilver.constrain.source import ToolCallFormat, ToolChoice, ToolSignature, ToolTags
from quicksilver.text.tokenizer import Tokenizer
from tests.constrain.conftest import special
from tests.constrain.runtime.test_matcher import ids, masks
from tests.support.small_tokenizer import VOCAB_SIZE

OPEN, CLOSE = special("<tool_call>"), special("</tool_call>")


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> Tokens:
    return Tokens(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE)


def test_tokens_are_bytes_and_special_tokens_are_themselves(tokens: Tokens) -> None:
    assert tokens.spell(ord("a")) == [ord("a")]
    assert tokens.spell(OPEN) == [OPEN]
    assert tokens.extend(b"", OPEN) == b""
    assert tokens.extend(b"x" * 64, ord("a")) == b"x" * 63 + b"a"


def test_paths_join_into_tokens(tokens: Tokens) -> None:
    assert tokens.join([OPEN, *ids("ab"), CLOSE]) == [OPEN, *ids("ab"), CLOSE]
    assert tokens.join([]) == []


def test_bits() -> None:
    assert bits_of([0, 33], 2).tolist() == [1, 2]


@pytest.mark.parametrize("is_special", [True, False])
def test_all_added_tokens_are_special(tokenizer: Tokenizer, is_special: bool) -> None:
    content = json.loads(tokenizer.to_json())
    for token in content["added_tokens"]:
        token["special"] = is_special
    grammars = Grammars(json.dumps(content), tokenizer.eos_ids, VOCAB_SIZE)
    plan = ToolCallFormat((ToolSignature("f"),), ToolTags(OPEN, CLOSE))
    constraint = grammars.constraint(compile_tools(plan))
    (row,) = masks(constraint, [])
    assert OPEN in row
    assert special("<think>") not in row
    constraint.advance([OPEN])
    body = ids('{"name": "f", "arguments": {}}')
    assert constraint.forced() == [*body, CLOSE]
    required = grammars.constraint(
        compile_tools(ToolCallFormat((ToolSignature("f"),), ToolTags(OPEN, CLOSE), ToolChoice.REQUIRED, 1))
    )
    assert required.forced() == [OPEN, *body, CLOSE]
    assert required.closing(len(body) + 2) == [OPEN, *body, CLOSE]
