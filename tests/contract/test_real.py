"""The whole stack with real weights: `quicksilver serve`, nano in its worker, and the `openai` client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.contract.strict_examples import EXAMPLES
from tests.support.live import serving
from tests.support.weights import nano

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server writes on its standard error."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def client(log: Path) -> Iterator[OpenAI]:
    nano()
    with serving(log) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300, max_retries=0)


def test_chat_answers_and_counts(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=ASK, temperature=0, max_tokens=32)
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_appends_to_the_same_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="nano", messages=ASK, temperature=0.8, seed=7, max_tokens=24)
    stream = client.chat.completions.create(
        model="nano", messages=ASK, temperature=0.8, seed=7, max_tokens=24, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_diffusing_ends_on_the_same_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="nano", messages=ASK, temperature=0, max_tokens=24)
    stream = client.chat.completions.create(
        model="nano", messages=ASK, temperature=0, max_tokens=24, stream=True, extra_body={"diffusing": True}
    )
    snapshots = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert snapshots[-1] == whole.choices[0].message.content


@pytest.mark.parametrize("decoder", ["ar", "verify", "confidence", "edit"])
def test_a_schema_is_kept_by_every_decoder(client: OpenAI, decoder: str) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "Describe a person as JSON."}],
        temperature=1.0,
        seed=1,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
        extra_body={"decoder": {"name": decoder, "canvas_len": 8}},
    )
    person = json.loads(reply.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_a_required_tool_is_always_called_with_valid_arguments(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "What is the weather in Oslo in celsius?"}],
        temperature=0,
        max_tokens=80,
        tools=[WEATHER],
        tool_choice="required",
    )
    call = reply.choices[0].message.tool_calls[0]  # type: ignore[index]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")
    assert reply.choices[0].finish_reason == "tool_calls"


def test_a_required_call_comes_at_every_temperature_and_seed(client: OpenAI) -> None:
    def call(index: int) -> str:
        reply = client.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": "Tell me a joke about cats."}],
            temperature=(0, 0.4, 0.8, 1.2, 1.5)[index % 5],
            seed=index,
            max_tokens=60,
            tools=[WEATHER],
            tool_choice="required",
            extra_body={"decoder": {"name": ("ar", "ar", "verify", "confidence")[index % 4], "canvas_len": 4}},
        )
        return reply.choices[0].message.tool_calls[0].function.arguments  # type: ignore[index]

    with ThreadPoolExecutor(8) as pool:
        arguments = [json.loads(text) for text in pool.map(call, range(24))]
    assert all(set(found) == {"city", "unit"} for found in arguments)
    assert all(found["unit"] in ("celsius", "fahrenheit") and len(found["city"]) <= 20 for found in arguments)


def test_strict_schemas_are_parsed(client: OpenAI) -> None:
    """If the token limit is reached first, the text was completed in time and is still valid."""

    def parse(wanted: type[BaseModel]) -> BaseModel | None:
        messages = [{"role": "user", "content": EXAMPLES[wanted]}]
        options = {"model": "nano", "temperature": 0, "max_tokens": 90}
        try:
            reply = client.chat.completions.parse(messages=messages, response_format=wanted, **options)
        except openai.LengthFinishReasonError as cut:
            return wanted.model_validate_json(cut.completion.choices[0].message.content or "")
        return reply.choices[0].message.parsed

    def respond(wanted: type[BaseModel]) -> BaseModel | None:
        reply = client.responses.parse(
            model="nano", input=EXAMPLES[wanted], text_format=wanted, temperature=0, max_output_tokens=90
        )
        return reply.output_parsed

    with ThreadPoolExecutor(16) as pool:
        parsed = [*pool.map(parse, EXAMPLES), *pool.map(respond, EXAMPLES)]
    assert [type(found) for found in parsed] == [*EXAMPLES, *EXAMPLES]


def test_labels_come_with_probabilities_from_one_forward(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "Is Paris in France? Answer yes or no."}],
        extra_body={"choice": ["yes", "no", "perhaps"]},
    )
    shares = reply.choices[0].model_extra["probabilities"]  # type: ignore[index]
    assert set(shares) == {"yes", "no", "perhaps"}
    assert abs(sum(shares.values()) - 1) < 1e-4
    assert reply.choices[0].message.content == max(shares, key=shares.__getitem__)


def test_fill_in_the_middle(client: OpenAI) -> None:
    reply = client.completions.create(model="nano", prompt="def add(a, b):\n    return ", suffix="\n", max_tokens=16)
    assert reply.choices[0].text.strip()


def test_a_bad_request_is_a_400_that_names_the_field(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="nano", messages=ASK, temperature=9)
    assert refused.value.param == "temperature"


def test_the_server_lists_its_models_and_an_example_request(client: OpenAI, log: Path) -> None:
    shown = log.read_text()
    url = str(client.base_url).rstrip("/")
    for word in ("model", "nano", "device", "cpu", "memory", "context", "playground", url, "/metrics"):
        assert word in shown
    command = re.search(r"^curl (\S+) .* -d '(.*)'$", shown, re.M)
    assert command is not None
    assert command[1] == f"{url}/chat/completions"
    assert json.loads(command[2])["model"] == "nano"
    assert f'OpenAI(base_url="{url}", api_key="none")' in shown


def test_log_lines_are_json_and_hold_nothing_of_what_was_asked(client: OpenAI, log: Path) -> None:
    ask = [{"role": "user", "content": "canary-prompt"}]
    client.chat.completions.create(model="nano", messages=ask, max_tokens=4, user="canary-user")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="nano", messages=ask, extra_body={"tools": "canary-tools"})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="canary-model", messages=ask, extra_headers={"x-secret": "canary-header"})
    client.models.list()  # A log line is written after its reply.
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    told = [line for line in lines if line["event"] == "request" and line["route"] == "/v1/chat/completions"]
    assert [line["status"] for line in told[-3:]] == [200, 400, 404]
    assert {"time", "level", "request_id", "reply_id", "ms"} <= set(told[-3])
    assert "canary" not in log.read_text()
