"""Language modelling: windows, perplexity, and the last word of a passage."""

from __future__ import annotations

import math

import pytest

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    language,
)
from tests.evals.build import skilled_writer


def test_windows_of_a_text_touch_and_do_not_overlap() -> None:
    text = "".join(chr(97 + i % 26) for i in range(3 * language.WINDOW))
    shared, writer = language.RunningText(text), skilled_writer()
    asks = [language.ask_window(language.Window(shared, i), writer) for i in range(2)]
    parts = ["".join(map(chr, (i - 17 for i in (*a.prompt_ids, *a.continuations[0])))) for a in asks]
    assert "".join(parts) == text[: 2 * language.WINDOW]


def test_perplexity_is_that_of_all_tokens_together() -> None:
    window = language.Window(language.RunningText(""), 0)
    scores = [language.score_window(window, Answer(logprobs=((-2.0,) * n,))) for n in (1, 3)]
    assert language.perplexity(scores)["ppl"] == pytest.approx(math.exp(2.0))


def test_last_word_must_be_said_exactly() -> None:
    passage = language.Passage("He saw the", " dog")
    assert language.ask_word(passage, skilled_writer()).max_new_tokens == 4
    assert language.score_word(passage, Answer(" dog")) == {"acc": 1.0}
    assert language.score_word(passage, Answer(" cat")) == {"acc": 0.0}
