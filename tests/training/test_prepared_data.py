"""Files of the prepare stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.training.prepared_data import (
    FINALS,
    QUESTIONS,
    Facts,
    read_finals,
    read_questions,
    write_finals,
    write_questions,
)

FACTS = Facts(8, (1, 2), 1, {"open": 3}, ("chat", "fim"), {"chat": 2}, 30, 20, 1, 0, "ab")


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    FACTS.save(tmp_path)
    assert Facts.load(tmp_path) == FACTS


def test_a_folder_without_prepared_data_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="run the prepare stage first"):
        Facts.load(tmp_path)


def test_questions_and_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_questions(tmp_path / QUESTIONS) == []
    assert read_finals(tmp_path / FINALS) == {}
    write_questions(tmp_path / QUESTIONS, ["Why?", "Größe?"])
    write_finals(tmp_path / FINALS, {"2+3?": "5"})
    assert read_questions(tmp_path / QUESTIONS) == ["Why?", "Größe?"]
    assert read_finals(tmp_path / FINALS) == {"2+3?": "5"}
