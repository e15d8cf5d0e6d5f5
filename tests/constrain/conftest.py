"""Tokenizers for constraints: one of single bytes, and that of nano if its file is present."""

from __future__ import annotations

import lzma

import pytest

from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.text.tokenizer import Tokenizer
from tests.support.shared_data import shared
from tests.support.small_tokenizer import SPECIALS, VOCAB_SIZE, small_tokenizer

SMOLLM2_ENDS = (2, 0)
# Wider than the vocabulary, as logits often are.
SMOLLM2_WIDTH = 49_280


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE)


@pytest.fixture(scope="session")
def smollm2() -> Grammars:
    text = lzma.decompress(shared("train", "tokenizer_smollm2.json.xz").read_bytes()).decode()
    return Grammars(text, SMOLLM2_ENDS, SMOLLM2_WIDTH)


def special(name: str) -> int:
    """The id of a special token of the small tokenizer."""
    return 256 + SPECIALS.index(name)
