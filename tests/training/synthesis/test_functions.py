"""Programming tasks from real functions."""

from __future__ import annotations

import random

from quicksilver.training.synthesis.functions import function_rows


def test_function_prompts_show_heads_and_never_a_lone_body() -> None:
    text = 'def f(x):\n    """Doubles a number, whatever it is."""\n    return x * 2\n\ndef g():\n    return 1\n'
    rows = [row for seed in range(40) for row in function_rows([text], random.Random(seed))]
    assert all(row.is_prompt_only and row.domain == "code" for row in rows)
    asked = {row.messages[0].content for row in rows}
    assert all("Doubles a number" in question and "def g" not in question for question in asked)
    assert {"return x * 2" in question for question in asked} == {True, False}
