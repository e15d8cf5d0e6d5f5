"""Pieces of a text have the same ids as the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from quicksilver.text import word_cuts
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from quicksilver.text.word_cuts import allows_cuts, cut
from tests.support.fakes import ByteTokenizer

_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


def plain(
    splitter: pre_tokenizers.PreTokenizer | None, normalizer: normalizers.Normalizer | None = None
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def split(pattern: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior)
    return pre_tokenizers.Sequence([words, _BYTE_LEVEL])


@pytest.mark.parametrize("pattern", [_QWEN2, _LLAMA3, _LING])
def test_known_patterns_allow_cuts(pattern: str) -> None:
    assert allows_cuts(plain(split(pattern), normalizers.NFC()))


@pytest.mark.parametrize(
    ("splitter", "normalizer"),
    [
        (None, None),
        (_BYTE_LEVEL, None),
        (split(r"\w+ \w+"), None),
        (split(_QWEN2, "removed"), None),
        (split(_QWEN2), normalizers.Prepend("▁")),
        (pre_tokenizers.Metaspace(), None),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
    ],
)
def test_other_tokenizers_do_not_allow_cuts(
    splitter: pre_tokenizers.PreTokenizer | None, normalizer: normalizers.Normalizer | None
) -> None:
    assert not allows_cuts(plain(splitter, normalizer))


def test_pieces_have_a_least_length_and_join_to_the_text() -> None:
    text = "one two " * 3000
    pieces = cut(text)
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert all(4096 <= len(piece) < 4110 and piece.startswith(" ") for piece in pieces[1:-1])
    assert cut("a" * 10_000) == ["a" * 10_000]
    assert cut("1 2 " * 5000) == ["1 2 " * 5000]
    assert cut("") == [""]


_WORDS = st.sampled_from(
    [
        "a",
        "Word",
        " ",
        "  ",
        "\n",
        "\t",
        "'s",
        "don't ",
        "I'LL x",
        "12",
        "3 4",
        "é",
        "e\u0301 a",
        "\u0301",
        "你好",
        "_x",
        "...",
        "\r\n",
        "a b",
    ]
)


@pytest.mark.parametrize("pattern", [_QWEN2, _LLAMA3, _LING])
@given(text=st.lists(_WORDS, max_size=40).map("".join))
def test_words_of_pieces_are_the_words_of_the_text(pattern: str, text: str) -> None:
    tokenizer = plain(split(pattern), normalizers.NFC())

    def words(piece: str) -> list[str]:
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(piece))]

    pieces = text_cuts(text)
    assert [word for piece in pieces for word in words(piece)] == words(text)


def text_cuts(text: str) -> list[str]:
    """As `cut`, at every place."""
    places = [match.start() for match in word_cuts._CUT.finditer(text)]
    return [text[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]


def test_a_long_text_has_the_ids_of_its_whole(tokenizer: Tokenizer) -> None:
    sources = sorted(Path(word_cuts.__file__).parent.glob("*.py"))
    text = "".join(source.read_text() for source in sources) + "é 你好, don't 3.14\n" * 400
    assert len(cut(text)) > 5
    assert tokenizer._allows_cuts or isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.encode(text) == tokenizer._plain.encode(text, add_special_tokens=False).ids


def test_a_long_text_of_an_unknown_tokenizer_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = json.loads(plain(split(r"\w+ \w+")).to_str())
    tokenizer = Tokenizer(Vocabulary(json.dumps(spec), 1, ()))
    pieces: list[list[str]] = []
    monkeypatch.setattr(tokenizer, "_encode_pieces", lambda given: pieces.append(given) or [])
    tokenizer.encode("one two " * 3000)
    assert [len(given) for given in pieces] == [1]
