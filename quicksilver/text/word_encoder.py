"""Token ids of text, word by word: each distinct word of a text is merged once.

A byte-level BPE tokenizer splits text into words with a pattern and merges bytes within each word only. Python's `re`
splits several times faster than the library, but it has no classes of Unicode: it splits text of the characters listed
here, whose classes are known. Text around other characters is encoded by the library, from cut to cut. With the
patterns listed here no word extends from a visible character over a space, so the words on both sides of a cut in front
of such a space are those of the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import tokenizers

# Letters of European alphabets without ſ, which equals s where case is ignored; signs that are neither letters nor
# numbers nor white space. NFC, the one normalizer that is allowed, changes no text of these and of ASCII.
_LETTERS = "A-Za-zÀ-ÖØ-öø-žΆΈ-ΊΌΎ-ΡΣ-ώЀ-ҁҊ-ӿ"
_SIGNS = "¡§©«®°±·»¿×÷‐-‧‰‹›€™←-↓−≈≤≥│─├└"  # noqa: RUF001
_OTHER = re.compile(rf"[^\x00-\x7f{_LETTERS}{_SIGNS}]")
_CUT = re.compile(r"(?<=[!-~])(?= )")
_LAST_CUT = re.compile(r"(?s:.*)(?<=[!-~])(?= )")
# The least number of characters from another one to the next cut. For the library a piece costs 4 µs and a character
# 0.2 µs.
_OTHER_CHARS = 256
# With this many threads the library encodes as many pieces of such a length in less time than `re` splits them.
_MIN_THREADS, _PIECE_CHARS = 4, 4096
# How many ids are read for words to merge in advance. Lower ids are those of more frequent words.
_NUM_COMMON = 2**15

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# The patterns of Qwen, of Llama 3 and cl100k, and of Ling, as their tokenizer.json files write them.
_PATTERNS = frozenset(
    rf"{contractions}|[^\r\n\p{{L}}\p{{N}}]?{own}\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+{own}[\r\n]*"
    rf"|\s*[\r\n]{lines}|\s+(?!\S)|\s+"
    for contractions in (_CONTRACTIONS, r"'(?i:[sdmt]|ll|ve|re)")
    for own in ("", "+")
    for digits in ("", "{1,3}")
    for lines in ("", "+")
)
# The pattern of GPT-2, which is part of the library; and where digits were split off before.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT2_DIGITS = _GPT2.replace(r" ?\p{N}+", r"\p{N}").replace(r"(?!\S)", r"(?![^\s0-9])")


class WordEncoder:
    """`alphabet` are the letters that a byte-level vocabulary has for the bytes 0 to 255."""

    def __init__(self, plain: tokenizers.Tokenizer, alphabet: Mapping[int, str]) -> None:
        self._plain = plain
        self._model = plain.model
        self._alphabet = alphabet
        pattern = _pattern_of(plain)
        self._words = None if pattern is None else re.compile(_in_python(pattern), re.ASCII)
        # Ids of frequent words. They do not depend on texts that were encoded, nor does the time to look them up.
        self._common: dict[str, list[int]] = {}
        self._has_threads = False

    def prepare(self, num_threads: int) -> None:
        """Merges the most frequent words in advance. `num_threads`: those of the library."""
        self._has_threads = num_threads >= _MIN_THREADS
        if self._words is None:
            return
        bytes_of = {ord(letter): byte for byte, letter in self._alphabet.items()}
        for letters in filter(None, map(self._plain.id_to_token, range(_NUM_COMMON))):
            word = letters.translate(bytes_of).encode("latin-1", "replace").decode("utf-8", "replace")
            if self._letters(word) == letters:  # not so for parts of characters and for special tokens
                self._common[word] = self._merge(letters)
        self._model._clear_cache()  # it holds the first 10,000 words that were merged

    def encode(self, text: str) -> list[int]:
        words, pieces = self._split(text)
        # As a batch, which the library encodes in several threads and without the interpreter lock.
        encodings = self._plain.encode_batch_fast(pieces, add_special_tokens=False) if pieces else []
        ids = {piece: encoding.ids for piece, encoding in zip(pieces, encodings, strict=True)}
        for word in set(words).difference(ids):
            if (known := self._common.get(word)) is None:
                known = self._merge(self._letters(word))
            ids[word] = known
        return list(chain.from_iterable(map(ids.__getitem__, words)))

    def _letters(self, word: str) -> str:
        return word.encode().decode("latin-1").translate(self._alphabet)

    def _merge(self, letters: str) -> list[int]:
        return [token.id for token in self._model.tokenize(letters)]

    def _split(self, text: str) -> tuple[list[str], list[str]]:
        """Words and pieces that make up the text, and the pieces alone, which the library encodes."""
        if self._words is None:
            return [text], [text]
        if self._has_threads and len(text) >= _MIN_THREADS * _PIECE_CHARS:
            return (parts := _cut(text)), parts
        words: list[str] = []
        pieces: list[str] = []
        end = 0
        while found := _OTHER.search(text, end):
            last = _LAST_CUT.match(text, end, found.start())
            start = last.end() if last else end
            words += self._words.findall(text, end, start)
            end = _next_cut(text, found.end() + _OTHER_CHARS)
            pieces.append(text[start:end])
            words.append(pieces[-1])
        return words + self._words.findall(text, end), pieces


def _cut(text: str) -> list[str]:
    pieces, end = [], 0
    while (start := end) < len(text):
        end = _next_cut(text, start + _PIECE_CHARS)
        pieces.append(text[start:end])
    return pieces


def _next_cut(text: str, start: int) -> int:
    found = _CUT.search(text, start)
    return found.start() if found else len(text)


def _pattern_of(tokenizer: tokenizers.Tokenizer) -> str | None:
    """The pattern by which the tokenizer splits text that is in NFC; None if it is not one of those known."""
    normalizer, splitter = _state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)
    is_bpe = isinstance(tokenizer.model, tokenizers.models.BPE)
    if not is_bpe or splitter is None or (normalizer is not None and normalizer.get("type") != "NFC"):
        return None
    match splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]:
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if pattern in _PATTERNS:
            return str(pattern)
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return _GPT2_DIGITS
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _GPT2
    return None


def _in_python(pattern: str) -> str:
    both = pattern.replace(r"\p{L}\p{N}", f"{_LETTERS}0-9")
    return both.replace(r"\p{L}", f"[{_LETTERS}]").replace(r"\p{N}", "[0-9]")


def _state(part: Any) -> dict[str, Any] | None:
    """A normalizer or a pre-tokenizer as tokenizer.json writes it."""
    return None if part is None else json.loads(part.__getstate__())
