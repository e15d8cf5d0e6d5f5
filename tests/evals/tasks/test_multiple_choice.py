"""Multiple choice: scores by likelihood and by length."""

from __future__ import annotations

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    multiple_choice,
)
from tests.evals.build import skilled_writer


def test_choices_are_scored_after_the_question_and_by_length() -> None:
    row = {"task": "sciq", "q": "What is red?", "c": ["a very long thing", "blood"], "g": 1}
    question = multiple_choice.read_question(row)
    ask = multiple_choice.ask(question, skilled_writer())
    texts = [skilled_writer().tokenizer.decode(ids) for ids in (ask.prompt_ids, *ask.continuations)]
    assert texts == ["Question: What is red?\nAnswer:", " a very long thing", " blood"]
    answer = Answer(logprobs=((-1.0, -2.0), (-2.9,)))
    assert multiple_choice.score(question, answer) == {"acc": 1.0, "acc_norm": 0.0}


def test_blank_is_filled_and_only_the_rest_is_scored() -> None:
    doc = {"sentence": "_ fed Ann because she was hungry.", "option1": "Bob", "option2": "Ann", "answer": "1"}
    question = multiple_choice.read_blank({"task": "winogrande", "doc": doc})
    ask = multiple_choice.ask(question, skilled_writer())
    assert ask.num_given == (3, 3)
    assert skilled_writer().tokenizer.decode(ask.continuations[0]) == "Bob fed Ann because she was hungry."
    assert ask.prompt_ids == (0,)
    assert multiple_choice.score(question, Answer(logprobs=((-1.0,), (-2.0,)))) == {"acc": 1.0}
