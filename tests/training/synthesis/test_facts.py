"""Short questions with short answers."""

from __future__ import annotations

import random

import pytest

from quicksilver.training.synthesis.facts import fact_rows, identity_rows, thinking_rows


@pytest.mark.parametrize("make", [fact_rows, identity_rows, thinking_rows])
def test_short_answers_are_never_empty(make: object) -> None:
    for row in make(200, random.Random(4)):  # type: ignore[operator]
        assert all(message.content.strip() for message in row.messages)
