"""Questions without answers, for distillation of chat from a larger model.

Everyday subjects in many forms, the categories of the other syntheses, and small programs. `distil` keeps answers that
are short, complete and English.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow
from quicksilver.training.synthesis.banks import (
    CAPITALS,
    CATEGORIES,
    CODE_TASKS,
    OPPOSITES,
    PLAIN_QA,
    QUESTION_FORMS,
    QUESTION_TOPICS,
)

_LANGUAGES = ("Python", "Python", "Python", "JavaScript")
_ABOUT_COUNTRIES = ("Where is {}?", "Tell me about {} in two sentences.", "What language do people speak in {}?")
_ABOUT_THINGS = ("What is a {t}?", "Describe a {t} in one sentence.", "Is a {t} one of the {c}? Answer yes or no.")
_ABOUT_CODE = ("Write a {l} function that {t}.", "How do I write {l} code that {t}?", "{l}: code that {t}, please.")
_ABOUT_WORDS = ('Use the word "{}" in a sentence.', 'What does "{}" mean?', 'Give a synonym for "{}".')


def question_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    kinds = (_topic, _topic, _topic, _topic, _code, _country, _thing, _word, _plain)
    for _ in range(count):
        turns = (Message("user", rng.choice(kinds)(rng)), Message("assistant", ""))
        yield ChatRow(turns, domain="questions", is_prompt_only=True)


def _topic(rng: random.Random) -> str:
    return rng.choice(QUESTION_FORMS).format(t=rng.choice(QUESTION_TOPICS))


def _code(rng: random.Random) -> str:
    return rng.choice(_ABOUT_CODE).format(l=rng.choice(_LANGUAGES), t=rng.choice(CODE_TASKS))


def _country(rng: random.Random) -> str:
    return rng.choice(_ABOUT_COUNTRIES).format(rng.choice(sorted(CAPITALS)))


def _thing(rng: random.Random) -> str:
    category = rng.choice(sorted(CATEGORIES))
    return rng.choice(_ABOUT_THINGS).format(t=rng.choice(CATEGORIES[category]), c=category)


def _word(rng: random.Random) -> str:
    return rng.choice(_ABOUT_WORDS).format(rng.choice(sorted(OPPOSITES)))


def _plain(rng: random.Random) -> str:
    return rng.choice(PLAIN_QA)[0]
