"""Typed questions -> the text that a model reads, and the tokens whose probabilities are the answer.

The input is written once. Each question is a branch after it that ends where the answer begins. Every option has a
label of one token, so all options of a question are read from the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, product
from string import ascii_uppercase

from quicksilver.errors import InvalidRequest

# Characters of a label that are encoded to find its first token: more than a token of any vocabulary has.
MAX_FIRST_TOKEN_CHARS = 64

Encode = Callable[[str], Sequence[int]]


class QuestionKind(StrEnum):
    PREDICATE = "predicate"
    CHOICE = "choice"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Option:
    text: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    kind: QuestionKind
    instructions: str
    # Of a predicate: true, then false, with descriptions only.
    options: tuple[Option, ...] = ()

    @property
    def num_chars(self) -> int:
        return len(self.instructions) + sum(len(option.text) + len(option.description) for option in self.options)


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """The text of a branch, and the token of each option."""

    text: str
    label_ids: tuple[int, ...]


def write_input(text: str) -> str:
    """The input and the word that every question begins with, which is computed once."""
    return f"{text.rstrip()}\n\nQuestion:"


class QuestionWriter:
    """Writes the questions of one request for one tokenizer."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        # Most tokenizers join a space to the word after it. Others get the space as the end of the question.
        joins_space = encode(" Yes")[0] != encode(" No")[0]
        self._label_start, self._end = (" ", "") if joins_space else ("", " ")
        self._letters: list[tuple[str, int]] = []
        # A, B, C …, then AA, AB …
        self._names = chain(ascii_uppercase, map("".join, product(ascii_uppercase, repeat=2)))

    def write(self, question: Question) -> WrittenQuestion:
        """Raises InvalidRequest if the tokenizer has no label of one token for every option."""
        if question.kind is QuestionKind.PREDICATE:
            return self._predicate(question)
        is_plain = question.kind is QuestionKind.CHOICE and not any(option.description for option in question.options)
        firsts = self._first_tokens(question.options) if is_plain else ()
        if firsts:
            listed = ", ".join(option.text for option in question.options)
            return WrittenQuestion(f" {question.instructions}\nOptions: {listed}\nAnswer:{self._end}", firsts)
        letters = self._take_letters(len(question.options))
        pairs = zip(letters, question.options, strict=True)
        listed = "".join(f"{name}. {_full(option)}\n" for (name, _), option in pairs)
        ids = tuple(token_id for _, token_id in letters)
        return WrittenQuestion(f" {question.instructions}\n{listed}Answer:{self._end}", ids)

    def _predicate(self, question: Question) -> WrittenQuestion:
        described = zip(("Yes", "No"), question.options, strict=False)
        notes = "".join(f"\n{answer}: {one.description}" for answer, one in described if one.description)
        if question.instructions.rstrip().endswith("?") or notes:
            text, labels = f" {question.instructions}{notes}\nAnswer:", ("Yes", "No")
        else:
            text, labels = f" {question.instructions}\nTrue or False:", ("True", "False")
        return WrittenQuestion(text + self._end, tuple(self._first_token(label) for label in labels))

    def _first_token(self, label: str) -> int:
        return self._encode(self._label_start + label[:MAX_FIRST_TOKEN_CHARS])[0]

    def _first_tokens(self, options: Sequence[Option]) -> tuple[int, ...]:
        """The first tokens of the options if they all differ, else nothing."""
        firsts = [self._first_token(option.text) if option.text else -1 for option in options]
        return tuple(firsts) if len({-1, *firsts}) == len(firsts) + 1 else ()

    def _take_letters(self, count: int) -> list[tuple[str, int]]:
        """`count` labels with their tokens; a label that takes several tokens is left out."""
        while len(self._letters) < count:
            name = next(self._names, None)
            if name is None:
                most = len(self._letters)
                raise InvalidRequest(f"questions: this model has labels for {most} options", param="questions")
            ids = self._encode(self._label_start + name)
            self._letters += [(name, ids[0])] if len(ids) == 1 else []
        return self._letters[:count]


def _full(option: Option) -> str:
    return ": ".join(filter(None, (option.text, option.description)))
