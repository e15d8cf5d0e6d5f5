"""Fill in the middle: gaps, prompts and scores."""

from __future__ import annotations

import pytest

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    fim,
)
from quicksilver.text.channels import Channels
from tests.evals.build import bare_writer, skilled_writer

FILE = "".join(f"    value_{i} = compute({i})\n" for i in range(30))


def test_gaps_put_back_together_are_the_file() -> None:
    gaps = [gap for name in "abcdef" for lines in (1, 4) for gap in fim.cut_gaps(FILE, name, lines)]
    assert {gap.kind for gap in gaps} == {"line", "rest"}
    assert all(gap.prefix + gap.middle + gap.suffix in FILE for gap in gaps)
    assert all(gap.middle.strip() and not gap.middle.endswith("\n") for gap in gaps)
    assert gaps == [gap for name in "abcdef" for lines in (1, 4) for gap in fim.cut_gaps(FILE, name, lines)]


def test_gap_is_asked_with_both_sides_where_weights_can_and_scored_exactly() -> None:
    gap = fim.Gap("x = ", "compute(1)", "\ny = 2", "rest")
    writer, roles = skilled_writer(), skilled_writer().tokenizer.roles
    ask = fim.ask(gap, writer)
    assert [i for i in ask.prompt_ids if i in (roles.fim_prefix, roles.fim_suffix)] == [
        roles.fim_suffix,
        roles.fim_prefix,
    ]
    assert roles.fim_prefix in ask.stop_ids
    assert bare_writer().tokenizer.decode(fim.ask(gap, bare_writer()).prompt_ids) == "x = "
    assert fim.score(gap, Answer("compute(1) \n"))["exact"] == 1.0
    near = fim.score(gap, Answer("compute(1)\nmore"))
    assert (near["exact"], near["exact_rest"], near["exact_unstopped"]) == (1.0, 1.0, 0.0)
    wrong = fim.score(gap, Answer("compute(2)"))
    assert (wrong["exact"], wrong["exact_unstopped"]) == (0.0, 0.0)
    assert 0.5 < wrong["similarity"] < 1.0


@pytest.mark.parametrize(
    "text", ["compute(1)", "compute(1)\nmore", " compute(1) \n", "\ncompute(1)", "", "compute(1)\r\n"]
)
def test_single_line_is_scored_as_a_line_break_as_stop_would_cut_it(text: str) -> None:
    gap = fim.Gap("x = ", "compute(1)", "\ny = 2", "rest")
    tokenizer = skilled_writer().tokenizer
    channels = Channels(tokenizer, stop=("\n",))
    cut = "".join(delta.text for delta in [*channels.push(tokenizer.encode(text)), *channels.finish()])
    assert fim.score(gap, Answer(text))["exact"] == fim.score(gap, Answer(cut))["exact_unstopped"]


def test_several_lines_are_not_cut_at_the_first() -> None:
    gap = fim.Gap("x = 1\n", "y = 2\nz = 3", "\n", "line")
    assert fim.score(gap, Answer("y = 2\nz = 3\n"))["exact"] == 1.0
    assert fim.score(gap, Answer("y = 2"))["exact"] == 0.0


def test_contexts_have_the_same_gaps_with_more_or_less_of_the_file() -> None:
    near, wide = (list(fim.cut_gaps(FILE * 20, "a", 1, around)) for around in (fim.Around(30, 10), fim.Around(90, 40)))
    assert [gap.middle for gap in near] == [gap.middle for gap in wide]
    assert all(long.prefix.endswith(short.prefix) for short, long in zip(near, wide, strict=True))
    assert all(long.suffix.startswith(short.suffix) for short, long in zip(near, wide, strict=True))
    assert max(len(gap.prefix) for gap in near) == 30
    assert max(len(gap.prefix) for gap in wide) == 90
