"""Questions as branches of scoring requests, and the texts of inputs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from quicksilver.core import ScoreRequest
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.decisions.plan import (
    MAX_REQUEST_TOKENS,
    Branch,
    _groups,
    option_text,
    read_named,
    read_typed,
    score_request,
    write_content,
    write_item,
)
from quicksilver.server.endpoints.decisions.question import Option, Question, QuestionKind
from quicksilver.server.endpoints.decisions.wire import InputItem, NamedQuestion, TypedQuestion


def typed(**fields: Any) -> TypedQuestion:
    found: TypedQuestion = TypeAdapter(TypedQuestion).validate_python(fields)
    return found


def named(**fields: Any) -> NamedQuestion:
    found: NamedQuestion = TypeAdapter(NamedQuestion).validate_python(fields)
    return found


def item(**fields: Any) -> InputItem:
    found: InputItem = TypeAdapter(InputItem).validate_python(fields)
    return found


def test_tokens_that_all_branches_begin_with_are_part_of_the_prompt() -> None:
    branches = [Branch((1, 2, 3), (7,)), Branch((1, 2, 4, 5), (8, 9))]
    assert score_request("r", (0,), branches, "t") == ScoreRequest("r", (0, 1, 2), ((3,), (4, 5)), "t", ((7,), (8, 9)))


@pytest.mark.parametrize(
    ("rows", "prompt", "continuations"),
    [
        ([(1, 2)], (0,), ((1, 2),)),
        ([(1, 2), (1, 2)], (0, 1), ((2,), (2,))),
        ([(1, 2), (1, 2, 3)], (0, 1), ((2,), (2, 3))),
        ([(1,), (2,)], (0,), ((1,), (2,))),
    ],
)
def test_every_branch_keeps_at_least_one_token(
    rows: list[tuple[int, ...]], prompt: tuple[int, ...], continuations: tuple[tuple[int, ...], ...]
) -> None:
    request = score_request("r", (0,), [Branch(row, (9,)) for row in rows])
    assert (request.prompt_ids, request.continuations) == (prompt, continuations)


def test_branches_are_grouped_up_to_a_number_of_tokens_and_long_ones_are_alone_and_last() -> None:
    short, long = Branch((0,) * 100, ()), Branch((0,) * 101, ())
    num_short = MAX_REQUEST_TOKENS // 100
    groups = list(_groups([long, *[short] * (num_short + 1)], 100))
    assert groups == [list(range(1, num_short + 1)), [num_short + 1], [0]]


def test_questions_of_both_forms_are_read() -> None:
    assert read_typed(typed(type="predicate", instructions="Is it?")) == Question(QuestionKind.PREDICATE, "Is it?")
    choices = [{"value": "a", "description": "first"}, {"value": False}]
    assert read_typed(typed(type="choice", instructions="Which?", choices=choices)) == Question(
        QuestionKind.CHOICE, "Which?", (Option("a", "first"), Option("false"))
    )
    assert read_named("q", named(type="choice", criteria={"a": {"x": 1}, "b": None})) == Question(
        QuestionKind.CHOICE, "Which option applies?", (Option("a", '{"x":1}'), Option("b"))
    )
    assert read_named("q", named(type="score", instructions="How?", criteria=["low", "high"])) == Question(
        QuestionKind.SCORE, "How?", (Option("", "low"), Option("", "high"))
    )


def test_a_noul_without_instructions_and_criteria_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_named("spam", named(type="noul", criteria={}))
    assert refused.value.param == "questions.spam.instructions"


def test_items_of_the_input_are_written_with_their_roles() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "json", "value": [1]}, {"type": "refusal", "refusal": "no"}]
    assert write_item(item(role="user", content=parts)) == "user: a[1]no"
    assert write_item(item(type="custom_tool_call", call_id="1", name="f", input="x")) == "call f: x"
    assert write_item(item(type="function_call_output", call_id="1", output="y")) == "result: y"


def test_values_are_written_as_text() -> None:
    assert option_text(True) == "true"
    assert option_text("True") == "True"
    assert write_content("text") == "text"
    assert write_content({"a": [1]}) == '{"a":[1]}'
