"""Detection of a language by typical features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.editing.languages import LANGUAGES, guess_languages, parser

EXAMPLES = json.loads((Path(__file__).parent / "merge_examples.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["language"])
def test_the_language_of_a_small_file_is_among_the_candidates(example: dict[str, str]) -> None:
    assert example["language"] in [language.name for language in guess_languages(example["original"])]


def test_prose_has_no_language() -> None:
    assert guess_languages("Dear reader, thank you for your letter.") == []


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_every_language_has_a_grammar(language: object) -> None:
    assert parser(language.name).parse(b"x").root_node is not None  # type: ignore[attr-defined]


def test_a_file_of_php_is_read_as_php_whatever_its_contents() -> None:
    text = "<?php\n\nconst a = 1;\n" + "let x = (y) => {};\nimport a from 'b';\n" * 9
    assert [language.name for language in guess_languages(text)] == ["php"]
