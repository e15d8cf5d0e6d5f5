"""Cuts a long text into pieces whose token ids, in order, are those of the whole text.

A byte-level BPE tokenizer splits text into words with a pattern and merges bytes within each word only. With the
patterns listed here a word never extends from a letter over a space to another letter. Pieces that are cut in front of
such a space therefore have the words of the whole text, and they can be encoded at the same time.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

_PIECE_CHARS = 4096
# In front of a single space between two ASCII letters. NFC, the one normalizer that is allowed, changes neither.
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")

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


def allows_cuts(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether the words of the tokenizer are known to end in front of a space between two letters."""
    normalizer, splitter = _state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)
    if splitter is None or (normalizer is not None and normalizer.get("type") != "NFC"):
        return False
    steps = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    return all(map(_is_known, steps)) and any(map(_splits_words, steps))


def cut(text: str) -> list[str]:
    """Pieces of at least `_PIECE_CHARS` characters, but for the last; one piece if the text has no place for a cut."""
    pieces, start = [], 0
    while found := _CUT.search(text, start + _PIECE_CHARS):
        pieces.append(text[start : found.start()])
        start = found.start()
    return [*pieces, text[start:]]


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return step["behavior"] == "Isolated" and not step["invert"] and step["pattern"].get("Regex") in _PATTERNS
    return step["type"] == "Digits" or (step["type"] == "ByteLevel" and not step["add_prefix_space"])


def _splits_words(step: dict[str, Any]) -> bool:
    return step["type"] == "Split" or (step["type"] == "ByteLevel" and bool(step["use_regex"]))


def _state(part: Any) -> dict[str, Any] | None:
    """A normalizer or a pre-tokenizer as tokenizer.json writes it."""
    return None if part is None else json.loads(part.__getstate__())
