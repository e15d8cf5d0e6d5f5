from __future__ import annotations

import random

import numpy as np
import pytest

from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.training.formats import Formatter
from quicksilver.training.pack import Document, PackedRows, pack
from quicksilver.training.rehearse import last_number, rehearsal_rows, rehearsed
from tests.support.fakes import tiny_tokenizer


@pytest.fixture(scope="module")
def formatter() -> Formatter:
    return Formatter(tiny_tokenizer(), max_len=512)


def generated(formatter: Formatter, *pairs: tuple[str, str]) -> PackedRows:
    """Rows as the generate stage leaves them; an answer that ends in ~ was cut off."""
    template, tokenizer = ChatTemplate.for_tokenizer(formatter.tokenizer), formatter.tokenizer
    documents = []
    for question, answer in pairs:
        asked = list(template.render((Message("user", question),)).ids)
        said = tokenizer.encode(answer) + ([] if answer.endswith("~") else [formatter.end_id])
        ids = np.array([*asked, *said], dtype=np.int32)
        is_answer = np.arange(len(ids)) >= len(asked)
        documents.append(Document(ids, is_answer, np.zeros_like(is_answer)))
    return pack(documents, 512, formatter.end_id, tokenizer.vocab_size)


def texts(formatter: Formatter, rows: PackedRows, finals: dict[str, str]) -> list[str]:
    found = rehearsed(rows, finals, formatter, random.Random(0))
    return ["".join(map(formatter.tokenizer.token_text, document.token_ids.tolist())) for document in found]


def test_whole_answers_are_kept_as_they_are(formatter: Formatter) -> None:
    rows = generated(formatter, ("Hi", "Hello."), ("Tell me more", "It was~"))
    kept = texts(formatter, rows, {})
    assert len(kept) == 1
    assert "Hello." in kept[0]


def test_right_answers_to_problems_become_thinking(formatter: Formatter) -> None:
    problems = [(f"What is {n} + 1?", f"{n} + 1 = {n + 1}. So it is {n + 1}.") for n in range(20)]
    rows = generated(formatter, *problems, ("What is 5 * 5?", "It is 24."))
    finals = {question: f"The answer is {n + 1}." for n, (question, _) in enumerate(problems)}
    kept = texts(formatter, rows, finals | {"What is 5 * 5?": "The answer is 25."})
    opens = formatter.tokenizer.token_text(formatter.tokenizer.roles.think_open or 0)
    assert len(kept) == 20
    assert 5 < sum(opens in text and "The answer is" in text for text in kept) < 20


def test_rehearsal_is_packed_in_the_formatters_rows(formatter: Formatter) -> None:
    rows = rehearsal_rows(generated(formatter, ("Hi", "Hello.")), {}, formatter, seed=1)
    assert rows.row_len == 512
    assert rows.num_rows == 1
    assert rows.is_answer.sum() == len("Hello.") + 1


@pytest.mark.parametrize(("text", "number"), [("a 1,200 b", 1200.0), ("-3.5", -3.5), ("none", None)])
def test_last_number_of_a_text(text: str, number: float | None) -> None:
    assert last_number(text) == number
