"""The text of a question and the tokens of its labels, for tokenizers with and without joined spaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.decisions.question import (
    MAX_FIRST_TOKEN_CHARS,
    Option,
    Question,
    QuestionKind,
    QuestionWriter,
    write_input,
)


def by_character(text: str) -> list[int]:
    """A tokenizer whose every character is a token."""
    return [ord(char) for char in text]


class WordTokenizer:
    """A tokenizer whose every word with the space before it is a token."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> Sequence[int]:
        self.texts.append(text)
        words = [f" {word}" for word in text.split(" ") if word]
        return [self._ids.setdefault(word, len(self._ids)) for word in words]


def choice(*texts: str, description: str = "") -> Question:
    return Question(QuestionKind.CHOICE, "Which?", tuple(Option(text, description) for text in texts))


def test_the_input_ends_with_the_word_that_questions_begin_with() -> None:
    assert write_input("Some text. \n") == "Some text.\n\nQuestion:"


def test_a_question_is_answered_with_yes_or_no_and_a_statement_with_true_or_false() -> None:
    writer = QuestionWriter(WordTokenizer())
    asked = writer.write(Question(QuestionKind.PREDICATE, "Is it sport? "))
    stated = writer.write(Question(QuestionKind.PREDICATE, "It is sport."))
    assert asked.text == " Is it sport? \nAnswer:"
    assert stated.text == " It is sport.\nTrue or False:"
    assert len({*asked.label_ids, *stated.label_ids}) == 4


def test_criteria_of_a_predicate_follow_it() -> None:
    options = (Option("", "Advertising"), Option("", ""))
    written = QuestionWriter(WordTokenizer()).write(Question(QuestionKind.PREDICATE, "Spam", options))
    assert written.text == " Spam\nYes: Advertising\nAnswer:"


def test_a_tokenizer_without_joined_spaces_gets_the_space_as_the_end_of_the_question() -> None:
    written = QuestionWriter(by_character).write(Question(QuestionKind.PREDICATE, "Is it?"))
    assert written.text == " Is it?\nAnswer: "
    assert written.label_ids == (ord("Y"), ord("N"))


def test_options_with_different_first_tokens_are_their_own_labels() -> None:
    written = QuestionWriter(by_character).write(choice("sales", "help"))
    assert written.text == " Which?\nOptions: sales, help\nAnswer: "
    assert written.label_ids == (ord("s"), ord("h"))


@pytest.mark.parametrize("question", [choice("sales", "support"), choice("", "b"), choice("a", "b", description="x")])
def test_other_options_are_labelled_with_letters(question: Question) -> None:
    written = QuestionWriter(by_character).write(question)
    assert written.label_ids == (ord("A"), ord("B"))
    assert "\nA. " in written.text


def test_levels_are_always_labelled_with_letters() -> None:
    levels = (Option("low"), Option("high", "Now"))
    written = QuestionWriter(by_character).write(Question(QuestionKind.SCORE, "How urgent?", levels))
    assert written.text == " How urgent?\nA. low\nB. high: Now\nAnswer: "


def test_more_options_than_labels_of_one_token_are_refused() -> None:
    options = tuple(Option(f"x{i}") for i in range(27))
    with pytest.raises(InvalidRequest, match="labels for 26 options"):
        QuestionWriter(by_character).write(Question(QuestionKind.SCORE, "?", options))


def test_only_the_start_of_a_label_is_encoded() -> None:
    tokenizer = WordTokenizer()
    QuestionWriter(tokenizer).write(choice("a" * 1000, "b" * 1000))
    assert max(map(len, tokenizer.texts)) == MAX_FIRST_TOKEN_CHARS + 1


def test_the_length_of_a_question_counts_every_text() -> None:
    question = Question(QuestionKind.CHOICE, "abc", (Option("de", "f"), Option("g")))
    assert question.num_chars == 7
