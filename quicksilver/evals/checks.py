"""Checks of an answer's form: counts, casing, prefixes and suffixes, JSON, language. Pure functions of text.

Each factory returns a predicate on an answer. Surrounding white space is stripped first. Content is not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Check = Callable[[str], bool]

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$|[\"\u201d)])")
_BULLET = re.compile(r"^\s*[-*•]\s+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+\S", re.MULTILINE)
_COMMON = {
    "French": "le la les un une des est et de du en que qui dans pour avec il elle nous vous je",
    "Spanish": "el la los las un una es y de en que con por para se su lo como más yo muy",
    "German": "der die das ein eine ist und zu von mit den dem nicht auf ich es im für auch sich",
    "English": "the a an is and to of in that it for with as on are this be at by from",
}


def num_words(text: str) -> int:
    return len(_WORD.findall(text))


def word_count(least: int, most: int) -> Check:
    return lambda text: least <= num_words(text) <= most


def sentence_count(count: int) -> Check:
    return lambda text: len(_SENTENCE_END.findall(text.strip())) == count


def paragraph_count(count: int) -> Check:
    return lambda text: len([part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]) == count


def bullet_count(count: int) -> Check:
    return lambda text: len(_BULLET.findall(text)) == count


def numbered_count(count: int) -> Check:
    return lambda text: len(_NUMBERED.findall(text)) == count


def comma_count(count: int) -> Check:
    """The answer is one line with `count` comma-separated items."""

    def check(text: str) -> bool:
        parts = [part.strip() for part in text.strip().rstrip(".").split(",")]
        return "\n" not in text.strip() and len(parts) == count and all(parts)

    return check


def all_upper(text: str) -> bool:
    return any(c.isalpha() for c in text) and text == text.upper()


def all_lower(text: str) -> bool:
    return any(c.isalpha() for c in text) and text == text.lower()


def only_word(*words: str) -> Check:
    """The answer is exactly one of the words, in any casing, with or without a full stop."""
    allowed = {word.lower() for word in words}
    return lambda text: text.strip().strip(".!\"'").lower() in allowed


def one_word(text: str) -> bool:
    return len(text.split()) == 1


def only_digits(text: str) -> bool:
    return text.strip().rstrip(".").isdigit()


def single_line(text: str) -> bool:
    return bool(text.strip()) and "\n" not in text.strip()


def begins(words: str) -> Check:
    return lambda text: text.strip().startswith(words)


def ends(words: str) -> Check:
    return lambda text: text.strip().endswith(words)


def contains(*words: str) -> Check:
    return lambda text: all(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in words)


def lacks(*pieces: str) -> Check:
    """The answer has at least three words and contains none of the pieces."""
    return lambda text: num_words(text) >= 3 and not any(piece.lower() in text.lower() for piece in pieces)


def repeats(word: str, count: int) -> Check:
    return lambda text: [found.lower() for found in _WORD.findall(text)] == [word.lower()] * count


def quoted(text: str) -> bool:
    return len(text.strip()) > 2 and text.strip().startswith('"') and text.strip().endswith('"')


def titled(text: str) -> bool:
    return re.search(r"<<[^<>\n]+>>", text) is not None


def json_keys(*keys: str) -> Check:
    """The whole answer is a JSON object with exactly these keys. JSON inside a code fence does not count."""
    return lambda text: isinstance(value := parse(text), dict) and set(value) == set(keys)


def json_list(count: int) -> Check:
    return lambda text: isinstance(value := parse(text), list) and len(value) == count


def parse(text: str) -> Any:
    """Return the JSON value of the whole text, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def in_language(language: str) -> Check:
    """Common words of this language are more frequent than those of the other known languages."""

    def check(text: str) -> bool:
        words = [word.lower() for word in _WORD.findall(text)]
        hits = {name: sum(word in common.split() for word in words) for name, common in _COMMON.items()}
        return hits[language] >= 2 and all(hits[language] > n for name, n in hits.items() if name != language)

    return check
