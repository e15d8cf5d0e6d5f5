"""The Python API over a tiny random model: lists, dicts, constraints, log-probabilities, progress."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import BaseModel

from quicksilver import DecodeParams
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.llm import LLM
from quicksilver.llm.loading import NUM_QUEUED
from tests.support.tiny import decode_params

SHORT = decode_params("verify", canvas_len=4, max_new_tokens=12)


class Person(BaseModel):
    name: str
    age: int


def test_import_quicksilver_is_cheap_and_has_the_public_names() -> None:
    code = """
import sys, quicksilver
assert not {"torch", "numpy", "quicksilver.core"} & set(sys.modules)
from quicksilver import DecodeParams, DecoderParams, Message, QuicksilverError
assert "torch" not in sys.modules
assert "LLM" in dir(quicksilver)
try:
    quicksilver.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "module 'quicksilver' has no attribute 'nothing'"


def test_a_list_is_one_batch_with_the_answers_of_single_calls(tiny_llm: LLM) -> None:
    prompts = ["alpha", "beta", "gamma delta"]
    batch = tiny_llm.generate(prompts, SHORT)
    assert [answer.text for answer in batch] == [tiny_llm.generate(prompt, SHORT).text for prompt in prompts]
    assert tiny_llm.generate([], SHORT) == []


def test_more_prompts_than_the_engine_queues_are_all_answered(tiny_llm: LLM) -> None:
    tiny_llm.engine.config = EngineConfig(num_pages=256, max_running=2, max_waiting=NUM_QUEUED)
    answers = tiny_llm.generate([f"{i}" for i in range(90)], decode_params("ar", canvas_len=1, max_new_tokens=1))
    assert len(answers) == 90
    assert not tiny_llm.engine.has_work


def test_chat_takes_dicts_messages_and_lists_of_conversations(tiny_llm: LLM) -> None:
    single = tiny_llm.chat("Hi", SHORT)
    as_dicts = tiny_llm.chat([{"role": "user", "content": "Hi"}], SHORT)
    batch = tiny_llm.chat(["Hi", [{"role": "user", "content": "Hi"}]], SHORT)
    assert {answer.text for answer in (single, as_dicts, *batch)} == {single.text}


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([{"role": "robot", "content": "x"}], "messages.0: role is one of"),
        ([{"role": "user", "content": 3}], "messages.0: content is a string"),
        ([{"role": "user", "content": "x", "conten": "y"}], "messages.0: unknown key 'conten'"),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f"}]}, {"role": "user", "content": "x"}],
            "messages.0: a tool",
        ),
        ([[]], "at least one message"),
    ],
)
def test_a_bad_message_is_refused_by_its_place(tiny_llm: LLM, messages: list[object], part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tiny_llm.chat(messages, SHORT)  # type: ignore[call-overload]
    assert part in refused.value.message


def test_schema_regex_and_choice(tiny_llm: LLM) -> None:
    params = decode_params("verify", canvas_len=4, max_new_tokens=200)
    person = json.loads(tiny_llm.chat("Who?", params, schema=Person).text)
    assert isinstance(person["age"], int)
    by_schema = tiny_llm.generate(
        "x", params, schema={"type": "object", "properties": {}, "additionalProperties": False}
    )
    assert json.loads(by_schema.text) == {}
    answer = tiny_llm.chat("Pick", SHORT, regex="(yes|no)!")
    assert answer.text in ("yes!", "no!")
    first, second = tiny_llm.chat(["A?", "B?"], choice=["red", "blue"])
    assert first.text in ("red", "blue")
    assert first.probabilities is not None
    assert sum(first.probabilities.values()) == pytest.approx(1.0)
    assert second.token_ids == tuple(tiny_llm.tokenizer.encode(second.text))


def test_constraints_that_exclude_each_other_are_refused(tiny_llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="only one of schema, regex and choice"):
        tiny_llm.generate("x", regex="a", choice=["a"])
    with pytest.raises(InvalidRequest, match="labels that differ"):
        tiny_llm.generate("x", choice=["a", "a"])
    with pytest.raises(InvalidRequest, match="JSON Schema as a dict"):
        tiny_llm.generate("x", schema="object")


def test_log_probabilities_belong_to_the_tokens_of_the_answer(tiny_llm: LLM) -> None:
    answer = tiny_llm.generate("x", decode_params("verify", canvas_len=4, max_new_tokens=6, logprobs=2))
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in answer.logprobs)
    assert tiny_llm.generate("x", SHORT).logprobs == ()


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (DecodeParams(temperature=-1), "temperature"),
        (DecodeParams(top_p=2), "top_p"),
        (DecodeParams(max_new_tokens=0), "max_new_tokens"),
        (DecodeParams(temperature="hot"), "temperature"),  # type: ignore[arg-type]
        (DecodeParams(logprobs=-1), "logprobs"),
        (decode_params("confidence", threshold=2.0), "threshold"),
    ],
)
def test_parameters_out_of_bounds_are_refused_by_name(tiny_llm: LLM, params: DecodeParams, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must be"):
        tiny_llm.generate(["x", "y"], params)
    assert not tiny_llm.engine.has_work


def test_a_stop_string_ends_one_answer_of_a_batch(tiny_llm: LLM) -> None:
    whole = tiny_llm.generate("x", decode_params("ar", canvas_len=1, max_new_tokens=12)).text
    stop = whole[3]
    cut = tiny_llm.generate(["x"], decode_params("ar", canvas_len=1, max_new_tokens=12), stop=stop)[0]
    assert cut.text == whole[: whole.index(stop)]
    assert tiny_llm.engine.stats().running == 0


def test_progress_is_drawn_on_standard_error(tiny_llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_llm.generate(["a", "b"], SHORT, progress=True)
    shown = capsys.readouterr()
    assert "2/2" in shown.err
    assert shown.out == ""


def test_a_failed_batch_leaves_no_request_in_the_engine(tiny_llm: LLM) -> None:
    too_long = "x" * 5000
    with pytest.raises(InvalidRequest):
        tiny_llm.generate(["x", too_long], SHORT)
    while tiny_llm.engine.has_work:
        tiny_llm.engine.step()
    assert tiny_llm.engine.stats().running == 0


def test_effort_gives_reasoning_and_an_answer(tiny_llm: LLM) -> None:
    answer = tiny_llm.chat("2+2?", decode_params("ar", canvas_len=1, max_new_tokens=64), effort="medium")
    assert answer.reasoning.endswith("I will answer now.\n")
    pieces = list(tiny_llm.stream_chat("2+2?", decode_params("ar", canvas_len=1, max_new_tokens=64), effort="medium"))
    assert "".join(piece.reasoning for piece in pieces) == answer.reasoning
    assert "".join(piece.text for piece in pieces) == answer.text
