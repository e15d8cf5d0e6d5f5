from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.evals import checks
from quicksilver.evals.checks import Check
from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import instructions, sanity

CASES: list[tuple[Check, str, str]] = [
    (checks.word_count(3, 3), "It's a well-known", "one two"),
    (checks.sentence_count(2), "Dogs bark. Do cats?", "Dogs bark."),
    (checks.paragraph_count(2), "One.\n\nTwo.", "One.\nTwo."),
    (checks.bullet_count(2), "Sure:\n- a\n- b", "- a"),
    (checks.numbered_count(2), "1. a\n2) b", "1. a"),
    (checks.comma_count(3), "oak, elm, fir.", "oak, elm,\nfir"),
    (checks.json_list(2), '["a", "b"]', '```json\n["a", "b"]\n```'),
    (checks.json_keys("a", "b"), '{"a": 1, "b": 2}', '{"a": 1}'),
    (checks.repeats("lamp", 2), "lamp, Lamp", "lamp lamp lamp"),
    (checks.all_upper, "HONEY!", "Honey"),
    (checks.all_lower, "honey", "12"),
    (checks.quoted, '"Honey."', '"Honey'),
    (checks.single_line, "Honey.\n", "a\nb"),
    (checks.titled, "<<Bees>>\nHoney.", "Bees"),
    (checks.only_word("yes", "no"), "Yes.", "Yes, they do."),
    (checks.one_word, "Blue", "Light blue"),
    (checks.only_digits, "15", "15 apples"),
    (checks.begins("Well,"), "Well, then", "Oh well,"),
    (checks.ends("The end."), "So. The end.", "The end. Bye"),
    (checks.contains("apple", "bridge"), "An apple on a bridge.", "Apples on a bridge."),
    (checks.lacks(","), "Tall trees stand here", "Tall, green trees"),
    (checks.in_language("French"), "Il pleut et le chat est dans la maison.", "The cat is in the house."),
    (checks.in_language("German"), "Der Hund ist auf dem Sofa.", "El perro es muy grande y está en la casa."),
    (checks.in_language("Spanish"), "El perro es muy grande y corre por la casa.", "Le chien est dans la maison."),
]


@pytest.mark.parametrize(("check", "good", "bad"), CASES)
def test_check_separates_good_from_bad(check: Check, good: str, bad: str) -> None:
    assert check(good)
    assert not check(bad)


def test_hundred_instructions_of_twenty_five_kinds_each_asked_once() -> None:
    items = list(instructions.load(Path()))
    assert len(items) == len({item.text for item in items}) == 100
    kinds = [item.kind for item in items]
    assert {kinds.count(kind) for kind in kinds} == {4}
    assert not any(item.check("") for item in items)


def test_instruction_is_scored_in_all_and_by_kind() -> None:
    item = next(item for item in instructions.load(Path()) if item.kind == "yes_no")
    assert instructions.score(item, Answer(" Yes.\n")) == {"followed": 1.0, "followed_yes_no": 1.0}


GOOD_ANSWERS = (
    "The capital of France is Paris. It lies on the Seine.",
    "def reverse(s):\n    return s[::-1]",
    "1. Apple\n2. Banana\n3. Cherry",
    "2 + 2 = 4.",
    "Hola",
    "The sky is blue.",
    "There are seven days in a week.",
    "The opposite of hot is cold.",
    "We live on Earth.",
    "Yes.",
)
BAD_ANSWERS = (
    "The capital of France is the city of the city.",
    "def reverse(s):\n    return s",
    "Apple and apple pie are nice.",
    "2 + 2 = 5.",
    "Bonjour",
    "The sky is green.",
    "There are 70 days.",
    "The opposite of hot is hotter.",
    "We live on Mars.",
    "No, yes is wrong.",
)


@pytest.mark.parametrize(
    ("question", "good", "bad"),
    list(zip(sanity.QUESTIONS, GOOD_ANSWERS, BAD_ANSWERS, strict=True)),
    ids=[question.text for question in sanity.QUESTIONS],
)
def test_sanity_question_accepts_a_right_answer(question: sanity.Question, good: str, bad: str) -> None:
    assert sanity.score(question, Answer(good)) == {"right": 1.0}
    assert sanity.score(question, Answer(bad)) == {"right": 0.0}
