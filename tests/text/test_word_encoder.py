"""Text encoded word by word has the ids that the library gives for the whole text."""

from __future__ import annotations

import itertools
import json
import random
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers, trainers

from quicksilver.text import word_encoder
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from quicksilver.text.word_encoder import WordEncoder
from tests.support.fakes import byte_characters

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_LISTED = f"[{word_encoder._LETTERS}{word_encoder._SIGNS}]"


def split(pattern: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), behavior), _BYTES])


_SPLITTERS = {
    "qwen2": split(_QWEN2),
    "llama3": split(_LLAMA3),
    "ling": split(_LING),
    "gpt2": _GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
}
each_splitter = pytest.mark.parametrize("name", list(_SPLITTERS))


@cache
def trained(name: str) -> tokenizers.Tokenizer:
    """A tokenizer with 700 merges of this package's source."""
    tokenizer = plain(_SPLITTERS[name], normalizers.NFC() if name != "smollm" else None)
    trainer = trainers.BpeTrainer(vocab_size=956, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([source_text()], trainer)
    return tokenizer


def plain(
    splitter: pre_tokenizers.PreTokenizer | None, normalizer: normalizers.Normalizer | None = None
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def source_text() -> str:
    return "".join(source.read_text() for source in sorted(Path(word_encoder.__file__).parent.glob("*.py")))


def encoder_of(tokenizer: tokenizers.Tokenizer) -> WordEncoder:
    return WordEncoder(tokenizer, dict(enumerate(byte_characters())))


def whole_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("splitter", "normalizer"),
    [
        (None, None),
        (_BYTES, None),
        (split(r"\w+ \w+"), None),
        (split(_QWEN2, "removed"), None),
        (split(_QWEN2), normalizers.Prepend("▁")),
        (pre_tokenizers.Metaspace(), None),
        (pre_tokenizers.Digits(), None),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
    ],
)
def test_text_of_an_unknown_tokenizer_is_one_piece(
    splitter: pre_tokenizers.PreTokenizer | None, normalizer: normalizers.Normalizer | None
) -> None:
    encoder = encoder_of(plain(splitter, normalizer))
    encoder.prepare(8)
    assert encoder._split("one two " * 9000) == (["one two " * 9000], ["one two " * 9000])


def test_text_of_another_model_than_bpe_is_one_piece() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = split(_QWEN2)
    assert encoder_of(tokenizer)._split("a a")[1] == ["a a"]


@cache
def listed() -> list[str]:
    return [chr(i) for i in range(128)] + [chr(i) for i in range(128, 2**16) if re.match(_LISTED, chr(i))]


@each_splitter
def test_every_listed_character_has_its_class(name: str) -> None:
    """Two of each, alone and beside a letter, a digit, a sign, a space, a line end and the letters of contractions."""
    splitter, encoder = _SPLITTERS[name], encoder_of(trained(name))
    sides = ["a", "1", "!", " ", "\n", "'", "s"]
    for char in listed():
        for text in (char + char, *(f"{side}{char}{other}" for side, other in itertools.product(sides, sides))):
            words, pieces = encoder._split(text)
            expected = [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]
            assert (words, pieces) == (expected, [])


def test_nfc_leaves_text_of_listed_characters_as_it_is() -> None:
    pairs = "".join(a + b for a, b in itertools.product(listed(), listed()))
    assert unicodedata.is_normalized("NFC", pairs)
    alone = "".join(listed())
    assert normalizers.NFC().normalize_str(alone) == alone


_SPACES = [" ", "  ", "\n", "\t", "\r\n", "\r", "\x1c", "\x85", "\xa0", "\u3000", "\u2028", "…\n\n", "a b", "\0"]
_WORDS = (
    "a Word 's don't I'LL 'ſ 12 3 ½ ٣ Ⅷ _x ... <|im_end|> </s> return é e\u0301 \u0301 ß ŉ ǅ ª « … – "  # noqa: RUF001
    "Привет ώρα ΐ हिन्दी 你好 가 각 🎉 👩‍👩‍👧"
)
_PARTS = [*_SPACES, *_WORDS.split()]
_TEXT = st.lists(st.one_of(st.sampled_from(_PARTS), st.text(max_size=3)), max_size=60).map("".join)


@each_splitter
@given(text=_TEXT)
def test_ids_are_those_of_the_whole_text(name: str, text: str) -> None:
    encoder = encoder_of(trained(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_encoder, "_OTHER_CHARS", 0)
        assert encoder.encode(text) == whole_ids(trained(name), text)


@each_splitter
@given(text=_TEXT)
def test_words_of_pieces_are_the_words_of_the_text(name: str, text: str) -> None:
    tokenizer = trained(name)

    def words(piece: str) -> list[str]:
        piece = piece if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(piece)
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(piece)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_encoder, "_PIECE_CHARS", 1)
        pieces = word_encoder._cut(text)
    assert "".join(pieces) == text
    assert [word for piece in pieces for word in words(piece)] == words(text)


@each_splitter
def test_words_that_were_merged_in_advance_have_the_same_ids(name: str) -> None:
    encoder = encoder_of(trained(name))
    before = encoder.encode(source_text())
    encoder.prepare(1)
    assert len(encoder._common) > 700
    assert all(ids == encoder._merge(encoder._letters(word)) for word, ids in encoder._common.items())
    assert encoder.encode(source_text()) == before == whole_ids(trained(name), source_text())


def test_tokens_with_letters_outside_the_alphabet_are_not_merged_in_advance() -> None:
    letters = {letter: i for i, letter in enumerate(byte_characters())}
    model = tokenizers.models.BPE({**letters, "\uff5c": 256, " a": 257, "é": 258}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = split(_QWEN2)
    encoder = encoder_of(tokenizer)
    encoder.prepare(1)
    assert encoder._common.keys() == {chr(i) for i in range(128)}
    assert encoder.encode("? a é") == whole_ids(tokenizer, "? a é")


def test_pieces_for_several_threads_have_a_least_length() -> None:
    encoder = encoder_of(trained("qwen2"))
    encoder.prepare(4)
    words, pieces = encoder._split("one two " * 3000)
    assert words == pieces
    assert len(pieces) > 5
    assert all(4096 <= len(piece) < 4110 and piece.startswith(" ") for piece in pieces[1:-1])
    assert encoder._split("one two " * 1000)[1] == []
    assert word_encoder._cut("a" * 10_000) == ["a" * 10_000]
    assert word_encoder._cut("") == []


def test_only_the_surroundings_of_other_characters_are_pieces() -> None:
    words, pieces = encoder_of(trained("qwen2"))._split("one two 你好 " + "x " * 200 + "three")
    assert [len(piece) for piece in pieces] == [259]
    assert words[:2] == ["one", " two"]
    assert words[2] == pieces[0]
    assert words[-1] == " three"


def long_text(seed: int) -> str:
    """Source text with words of many scripts in it."""
    rng = random.Random(seed)
    lines = source_text().splitlines(keepends=True)
    parts = (rng.choice(lines) if rng.random() < 0.3 else rng.choice(_PARTS) for _ in range(3000))
    return "".join(parts) + "é 你好, don't 3.14\n" * 400


@pytest.mark.parametrize("num_threads", [1, 8])
@pytest.mark.parametrize("name", ["tiny", "smollm2", "qwen"])
def test_a_long_text_has_the_ids_of_its_whole(name: str, num_threads: int, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    encoder = WordEncoder(tokenizer._plain, dict(enumerate(byte_characters())))
    texts = [source_text(), *map(long_text, range(3))]
    expected = [whole_ids(tokenizer._plain, text) for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    encoder.prepare(num_threads)
    assert [encoder.encode(text) for text in texts] == expected


def test_a_tokenizer_with_a_known_pattern_encodes_by_words(smollm2: Tokenizer) -> None:
    assert smollm2._words._words is not None
    copied = Tokenizer(Vocabulary(json.dumps(json.loads(trained("qwen2").to_str())), 956, ()))
    assert copied.encode("One two, three.") == whole_ids(trained("qwen2"), "One two, three.")
