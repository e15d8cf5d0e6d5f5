"""Word lists for the synthetic data: names, places, small facts. They are read from `word_lists.json`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_LISTS: dict[str, Any] = json.loads((files(__package__) / "word_lists.json").read_text(encoding="utf-8"))


def words(text: str) -> tuple[str, ...]:
    """Split a comma-separated list. Line breaks count as spaces."""
    return tuple(word.strip() for word in " ".join(text.split()).split(","))


def _list(name: str) -> tuple[str, ...]:
    return tuple(_LISTS[name])


def _pairs(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((first, second) for first, second in _LISTS[name])


def _lists(name: str) -> dict[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in _LISTS[name].items()}


CITIES, PEOPLE, COMPANIES = _list("cities"), _list("people"), _list("companies")
PRODUCTS, TOPICS = _list("products"), _list("topics")
DATES = tuple(f"2026-{month:02d}-{day:02d}" for month in range(1, 13) for day in (3, 8, 14, 19, 27))
TIMES = tuple(f"{hour:02d}:{minute:02d}" for hour in range(7, 22) for minute in (0, 15, 30, 45))
AMOUNTS = (5, 10, 12.5, 20, 25, 49.99, 50, 75, 100, 120.5, 250, 300, 999.95)
CATEGORIES, YES_NO = _lists("categories"), _lists("yes_no")
CAPITALS: dict[str, str] = _LISTS["capitals"]
TRANSLATIONS: dict[str, dict[str, str]] = _LISTS["translations"]
OPPOSITES: dict[str, str] = _LISTS["opposites"]
PLURALS: dict[str, str] = _LISTS["plurals"]
MADE_BY: dict[str, str] = _LISTS["made_by"]
PLAIN_QA, PYTHON_TASKS = _pairs("plain_qa"), _pairs("python_tasks")
# Subjects, request forms and programming tasks for distillation.
QUESTION_TOPICS, QUESTION_FORMS, CODE_TASKS = _list("question_topics"), _list("question_forms"), _list("code_tasks")
