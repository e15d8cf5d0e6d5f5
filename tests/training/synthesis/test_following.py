"""Format-following rows."""

from __future__ import annotations

import json
import random

from quicksilver.training.synthesis.following import following_rows


def test_counted_lists_have_the_asked_number_of_items() -> None:
    for row in following_rows(500, random.Random(3)):
        question, answer = row.messages[0].content, row.messages[1].content
        if question.startswith("List 4") and "JSON" in question:
            assert len(json.loads(answer)) == 4
        if "all capital letters" in question:
            assert answer == answer.upper()
