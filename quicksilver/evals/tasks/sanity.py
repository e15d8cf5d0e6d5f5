"""Ten easy questions that a working chat model answers. They detect broken weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task


@dataclass(frozen=True, slots=True)
class SanityQuestion:
    """Correct if `pattern` matches the answer, in any casing, and `wrong` does not."""

    text: str
    pattern: str
    wrong: str = r"(?!)"

    def is_right(self, answer: str) -> bool:
        found = re.search(self.pattern, answer, re.IGNORECASE | re.DOTALL)
        return found is not None and re.search(self.wrong, answer, re.IGNORECASE | re.DOTALL) is None


_FRUITS = "apple|banana|orange|grape|mango|pear|cherry|cherries|peach|plum|kiwi|strawberr|blueberr|lemon|pineapple"

QUESTIONS = (
    SanityQuestion("What is the capital of France? Explain briefly.", r"\bParis\b"),
    SanityQuestion(
        "Write a Python function that reverses a string.",
        r"\[\s*:\s*:\s*-1\s*\]|reversed\s*\(|for .+ in .+:.*=\s*\w+\s*\+",
    ),
    SanityQuestion("List three fruits.", rf"(?:({_FRUITS}).*){{3}}"),
    SanityQuestion("What is 2 + 2?", r"\b(4|four)\b", r"=\s*(?!4\b)\d+\s*\."),
    SanityQuestion("Translate 'hello' into Spanish.", r"\bhola\b"),
    SanityQuestion("What colour is the sky on a clear day?", r"\bblue\b"),
    SanityQuestion("How many days are there in a week?", r"\b(7|seven)\b"),
    SanityQuestion("What is the opposite of hot?", r"\bcold\b"),
    SanityQuestion("Which planet do we live on?", r"\bearth\b"),
    SanityQuestion("Is ice frozen water? Answer yes or no.", r"^\W*yes\b"),
)


def load(data: Path) -> Iterable[SanityQuestion]:
    return QUESTIONS


def ask(question: SanityQuestion, writer: PromptBuilder) -> Generate:
    prompt = writer.chat(question.text)
    return Generate(prompt.ids, 96, prompt.stop, prompt.stop_ids)


def score(question: SanityQuestion, answer: Answer) -> Metrics:
    return {"right": float(question.is_right(answer.text))}


TASKS = (Task("sanity", "chat", ("right",), load, ask, score, len(QUESTIONS)),)
