"""Word lists: read from their file, without gaps or duplicates."""

from __future__ import annotations

import pytest

from quicksilver.training.synthesis import banks

LISTS = ("CITIES", "PEOPLE", "COMPANIES", "PRODUCTS", "TOPICS", "QUESTION_TOPICS", "QUESTION_FORMS", "CODE_TASKS")


@pytest.mark.parametrize("name", LISTS)
def test_lists_have_distinct_non_empty_entries(name: str) -> None:
    entries = getattr(banks, name)
    assert len(set(entries)) == len(entries) >= 10
    assert all(entry and entry == entry.strip() for entry in entries)


def test_every_language_translates_the_same_words() -> None:
    words = [set(words) for words in banks.TRANSLATIONS.values()]
    assert all(each for each in words)


def test_a_comma_separated_text_may_span_lines() -> None:
    assert banks.words("red, dark\n  blue") == ("red", "dark blue")
