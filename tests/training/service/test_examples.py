"""Examples: which tokens are learned, and which files are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from quicksilver.training.corpus import OverlapCheck
from quicksilver.training.formats import Formatter
from quicksilver.training.service import examples
from quicksilver.training.service.examples import Example, read_examples, with_answer_of
from quicksilver.training.service.faults import DataRefused
from tests.support.small_tokenizer import small_tokenizer
from tests.support.tuning import chat_lines

NO_EVALS = OverlapCheck(())
FORMATTER = Formatter(small_tokenizer(), 512)


def read(*lines: dict[str, Any], method: str = "supervised", check: OverlapCheck = NO_EVALS) -> list[Example]:
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    return read_examples(content, method, FORMATTER, check, "training_file", min_examples=1)


def learned(example: Example) -> str:
    tokenizer, document = small_tokenizer(), example.document
    return "".join(map(tokenizer.token_text, document.token_ids[document.is_answer].tolist()))


def turn(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def test_only_the_answer_is_learned() -> None:
    (chat,) = read({"messages": [turn("user", "Hi"), turn("assistant", "Yes")]})
    assert learned(chat) == "Yes<|im_end|>"
    (gap,) = read({"prompt": "ab", "suffix": "ef", "completion": "cd"})
    assert learned(gap) == "cd<|im_end|>"
    (text,) = read({"text": "abc"})
    assert learned(text) == "bc"


def test_a_turn_of_weight_zero_is_not_learned() -> None:
    turns = [turn("user", "1"), turn("assistant", "A", weight=0), turn("user", "2"), turn("assistant", "B")]
    (example,) = read({"messages": turns})
    assert learned(example) == "B<|im_end|>"


def test_of_a_judged_chat_the_last_answer_counts() -> None:
    turns = [turn("user", "1"), turn("assistant", "A"), turn("user", "2"), turn("assistant", "B")]
    (good, bad) = read({"messages": turns, "label": True}, {"messages": turns, "label": False}, method="kto")
    assert learned(good) == learned(bad) == "B<|im_end|>"
    assert (good.label, bad.label) == (True, False)


def test_a_prompt_takes_the_answer_of_another_example() -> None:
    one, two = read({"prompt": "ab", "completion": "cd"}, {"prompt": "x", "completion": "yz"})
    mixed = with_answer_of(one.document, two.document)
    assert "".join(map(small_tokenizer().token_text, mixed.token_ids.tolist())) == "abyz<|im_end|>"
    assert np.flatnonzero(mixed.is_answer)[0] == 2


@pytest.mark.parametrize(
    ("content", "method", "code"),
    [
        (chat_lines(9), "supervised", "too_few_examples"),
        (b"", "supervised", "too_few_examples"),
        (json.dumps({"prompt": "a" * 600, "completion": "b"}).encode(), "supervised", "example_too_long"),
        (b'{"prompt": "a", "completion": "b", "label": true}\n' * 12, "kto", "invalid_row"),
    ],
)
def test_a_file_is_refused_with_a_code(content: bytes, method: str, code: str) -> None:
    with pytest.raises(DataRefused) as refused:
        read_examples(content, method, FORMATTER, NO_EVALS, "training_file")
    assert (refused.value.code, refused.value.param) == (code, "training_file")


def test_a_line_that_overlaps_with_an_evaluation_is_refused_with_its_number() -> None:
    words = " ".join(f"w{i}" for i in range(14))
    with pytest.raises(DataRefused) as refused:
        read({"prompt": "fine", "completion": "x"}, {"text": words}, check=OverlapCheck([f"Task: {words}!"]))
    (fault,) = refused.value.faults
    assert (fault.line, fault.code) == (2, "training_data_matches_eval")


def test_running_text_that_becomes_too_many_examples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 2)
    with pytest.raises(DataRefused) as refused:
        read({"text": "a" * 2000}, {"text": "b"})
    assert [(fault.line, fault.code) for fault in refused.value.faults] == [(1, "file_too_large")]
