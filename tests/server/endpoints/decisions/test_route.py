"""Typed questions about one input, in OpenAI's and in TypeSafe's form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from quicksilver.core import ScoreRequest, Scores, Usage
from quicksilver.server.endpoints.decisions.calibration import calibration_of
from quicksilver.server.endpoints.decisions.plan import MAX_BRANCH_TOKENS
from tests.server.conftest import Served
from tests.support.bank import Bank
from tests.support.small_tokenizer import small_tokenizer

QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "sport", "instructions": "Is it about sport?"},
    {"type": "predicate", "instructions": "It is about food."},
    {
        "type": "choice",
        "name": "team",
        "instructions": "Which team?",
        "choices": [{"value": "billing", "description": "Money"}, {"value": True}, {"value": "true"}],
    },
    {
        "type": "score",
        "instructions": [{"type": "input_text", "text": "How urgent?"}],
        "levels": [{"label": "low"}, {"label": "middle", "description": "Soon"}, {"label": "high"}],
    },
]


def by_token(request: ScoreRequest) -> Scores:
    """The probability of a label depends on its token alone."""
    if request.next_tokens:
        logprobs = tuple(tuple(-token / 10 for token in tokens) for tokens in request.next_tokens)
    else:
        logprobs = tuple((-token / 10,) for (token,) in request.continuations)
    rows = len(request.prompt_ids) + sum(map(len, request.continuations))
    return Scores(logprobs, Usage(len(request.prompt_ids), 4, len(logprobs), 2, rows))


def shares(*labels: str) -> list[float]:
    temperature = calibration_of("nano").temperature
    weights = [math.exp(-small_tokenizer().encode(label)[0] / 10 / temperature) for label in labels]
    return [weight / sum(weights) for weight in weights]


def text_of(ids: tuple[int, ...]) -> str:
    return small_tokenizer().decode(ids)


async def ask(served: Served, questions: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    served.engine.scorer = by_token
    body = {"model": "nano", "input": "The match ended 3:1.", "questions": questions, **fields}
    response = await served.post("/v1/decisions", body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


async def test_every_kind_of_question_in_one_scoring_request(served: Served) -> None:
    reply = await ask(served, QUESTIONS)
    sport, food, team, urgent = reply["answers"]
    (request,) = served.engine.scored
    assert text_of(request.prompt_ids) == "The match ended 3:1.\n\nQuestion: "
    assert [text_of(ids) for ids in request.continuations[:2]] == [
        "Is it about sport?\nAnswer: ",
        "It is about food.\nTrue or False: ",
    ]
    assert sport == {"type": "predicate", "name": "sport", "probability": pytest.approx(shares("Y", "N")[0])}
    assert food["name"] is None
    assert [entry["value"] for entry in team["probabilities"]] == ["billing", True, "true"]
    assert team["choice"] == "billing"
    assert team["confidence"] == max(entry["probability"] for entry in team["probabilities"])
    assert [(entry["value"], entry["label"]) for entry in urgent["probabilities"]] == [
        (0, "low"), (1, "middle"), (2, "high"),
    ]  # fmt: skip
    low, middle, high = shares("A", "B", "C")
    assert [entry["probability"] for entry in urgent["probabilities"]] == pytest.approx([low, middle, high])
    assert urgent["score"] == pytest.approx(middle + 2 * high)
    usage = reply["usage"]
    asked = sum(map(len, request.continuations))
    shared = len(" ") * (len(QUESTIONS) - 1)
    assert usage["input_tokens"] == len(request.prompt_ids) + asked + shared
    assert usage["output_tokens"] == len(QUESTIONS)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 4


async def test_text_that_all_questions_begin_with_is_computed_once(served: Served) -> None:
    texts = ["Is it about food?", "Is it about sport?", "Is it about"]
    reply = await ask(served, [{"type": "predicate", "instructions": text} for text in texts])
    (request,) = served.engine.scored
    assert text_of(request.prompt_ids).endswith("\n\nQuestion: Is it about")
    assert [text_of(ids) for ids in request.continuations] == [
        " food?\nAnswer: ",
        " sport?\nAnswer: ",
        "\nTrue or False: ",
    ]
    prefix = len(small_tokenizer().encode("The match ended 3:1.\n\nQuestion:"))
    asked = sum(len(small_tokenizer().encode(" Is it about")) + len(ids) for ids in request.continuations)
    assert reply["usage"]["input_tokens"] == prefix + asked, "each question is charged with its whole text"


async def test_equal_questions_keep_a_row_each(served: Served) -> None:
    reply = await ask(served, [QUESTIONS[0]] * 3)
    assert len({answer["probability"] for answer in reply["answers"]}) == 1
    assert [len(ids) for ids in served.engine.scored[0].continuations] == [1, 1, 1]


async def test_a_long_question_is_scored_after_a_prompt_of_its_own(served: Served) -> None:
    long = {"type": "predicate", "instructions": "x" * MAX_BRANCH_TOKENS + "?"}
    reply = await ask(served, [long, QUESTIONS[0]])
    short_request, long_request = served.engine.scored
    assert text_of(long_request.prompt_ids).endswith("x?\nAnswer: ")
    assert len(short_request.continuations) == 1
    assert len(reply["answers"]) == 2


async def test_an_engine_with_few_rows_scores_questions_above_its_limit_alone(served: Served) -> None:
    """A server on a CPU has fewer rows for scoring than the longest branch."""
    served.engine.info = replace(served.engine.info, score_pass_rows=64)
    question = {"type": "predicate", "instructions": "x" * 64 + "?"}
    await ask(served, [question, {"type": "predicate", "instructions": "Sport?"}])
    short_request, long_request = served.engine.scored
    assert all(len(ids) <= 64 for ids in short_request.continuations)
    assert long_request.next_tokens == ()
    assert text_of(long_request.prompt_ids).endswith("x?\nAnswer: ")


async def test_items_of_the_input_are_written_in_order(served: Served) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_json", "json": {"a": 1}}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "found"},
    ]
    await ask(served, QUESTIONS[:1], input=items)
    assert text_of(served.engine.scored[0].prompt_ids) == 'user: Hi{"a":1}\ncall look: {}\nresult: found\n\nQuestion:'


async def test_type_safe_form(served: Served) -> None:
    served.engine.scorer = by_token
    questions = {
        "billing": {"type": "noul", "instructions": "Is it about billing?"},
        "spam": {"type": "noul", "criteria": {"true": "Advertising", "false": {"kind": "talk"}}},
        "route": {"type": "choice", "criteria": {"sales": "Buying", "help": None}},
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["Can wait", "Today"]},
    }
    body = {"state": {"message": "Please help."}, "questions": questions}
    reply = (await served.post("/v1/systemone", body)).json()
    answers = reply["answers"]
    assert list(answers) == list(questions)
    assert answers["billing"] == {"type": "noul", "noul": pytest.approx(shares("Y", "N")[0])}
    assert set(answers["route"]["probabilities"]) == {"sales", "help"}
    assert answers["urgency"]["legend"] == {"0": "Can wait", "1": "Today"}
    assert sum(answers["urgency"]["probabilities"].values()) == pytest.approx(1)
    texts = [text_of(ids) for ids in served.engine.scored[0].continuations]
    assert "Yes: Advertising" in texts[1]
    assert "A. sales: Buying\nB. help\n" in texts[2]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": QUESTIONS[:1] * 401}, "questions"),
        ({"questions": [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}]}, "questions.0.choices"),
        (
            {"questions": [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}] * 2}]},
            "questions.0.choices",
        ),
        ({"questions": [{"type": "guess", "instructions": "x"}]}, "questions.0"),
        ({"input": "x" * 5000}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
        ({"stream": True}, "stream"),
    ],
    ids=["none", "too many", "one choice", "repeated choice", "unknown kind", "too long", "image", "stream"],
)
async def test_refusals(served: Served, change: dict[str, Any], param: str | None) -> None:
    refused = await served.post("/v1/decisions", {"input": "x", "questions": QUESTIONS[:1], **change})
    assert refused.status_code == 400
    if param is not None:
        assert refused.json()["error"]["param"] == param


async def test_a_noul_needs_a_question(served: Served) -> None:
    refused = await served.post("/v1/systemone", {"state": "x", "questions": {"q": {"type": "noul"}}})
    assert refused.json()["error"]["param"] == "questions.q.instructions"


async def test_tokens_of_input_and_questions_are_charged(served: Served, bank: Bank) -> None:
    served.engine.scorer = by_token
    headers = await bank.key()
    body = {"model": "nano", "input": "x", "questions": QUESTIONS}
    usage = (await served.post("/v1/decisions", body, headers)).json()["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert await bank.spent() == usage["total_tokens"] - cached
