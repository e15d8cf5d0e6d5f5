"""Which teacher answers are kept, and their conversion into documents of the student."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.text.special_tokens import Specials
from quicksilver.training import distil
from quicksilver.training.distil import Teaching, distil_chat, distilled, is_worth_learning
from quicksilver.training.formats import Formatter
from quicksilver.training.pack import Document, pack
from tests.support.fakes import ByteTokenizer


@pytest.mark.parametrize(
    "answer",
    ["", "I am Qwen.", "As an AI I cannot.", "\u4f60\u597d", "la la la la la la la la", "x" * 700],
    ids=["empty", "another's name", "apology", "other script", "loop", "long"],
)
def test_answers_that_teach_nothing_are_dropped(answer: str) -> None:
    assert not is_worth_learning(answer)


@pytest.mark.parametrize("answer", ["Paris.", "1. apple\n2. pear", "```python\nx = 1\n```"])
def test_short_plain_answers_are_kept(answer: str) -> None:
    assert is_worth_learning(answer)


def _answered(teacher: ByteTokenizer, question: str, answer: str, *, is_whole: bool) -> Document:
    opens, closes = teacher.roles.turn_open, teacher.roles.turn_close
    assert opens is not None
    assert closes is not None
    asked = [opens, *teacher.encode(f"user\n{question}"), closes, opens, *teacher.encode("assistant\n")]
    said = [*teacher.encode(answer), *([closes] if is_whole else [])]
    is_answer = np.arange(len(asked) + len(said)) >= len(asked)
    return Document(np.array(asked + said), is_answer, np.zeros_like(is_answer))


def test_a_teacher_without_an_end_of_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(roles=Specials(), with_reserved=lambda: None)
    monkeypatch.setattr(distil, "Tokenizer", SimpleNamespace(load=lambda path: bare))
    run = Teaching(Mock(), Path("data"), Path("base"), Path("models/teacher"))
    with pytest.raises(InvalidRequest, match="ends a turn"):
        distil_chat(run, Mock(), Mock())


def test_whole_answers_become_documents_once() -> None:
    teacher = ByteTokenizer()
    told = [("Why?", "Because.", True), ("Why not?", "Because.", True), ("How?", "Like th", False)]
    rows = pack([_answered(teacher, q, a, is_whole=w) for q, a, w in told], 128, 0, 300)
    student = Formatter(ByteTokenizer().with_reserved(), 512)
    documents = list(distilled(rows, teacher, student))
    assert len(documents) == 1
    text = student.tokenizer.decode(documents[0].token_ids.tolist())
    assert "Why?" in text
    assert text.endswith("Because.")
