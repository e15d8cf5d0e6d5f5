"""The `openai` client against a live server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.contract.live import ANSWER, POEM, LiveServer

pytestmark = pytest.mark.contract


@pytest.fixture(scope="session")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def ask(text: str = "What is the capital of France?") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat_answer_and_usage(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=ask())
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply._request_id is not None
    assert reply._request_id.startswith("req_")


def test_chat_stream_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="mercury-2", messages=ask(), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER)


def test_chat_stream_helper_rebuilds_the_message(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="mercury-2", messages=ask()) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == ANSWER
    assert final.choices[0].message.role == "assistant"


def test_several_answers_have_an_index_each(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=ask(), n=3)
    assert [(c.index, c.message.content) for c in reply.choices] == [(i, ANSWER) for i in range(3)]


def test_developer_role_and_token_limit_are_honoured(client: openai.OpenAI, live: LiveServer) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *ask()]
    reply = client.chat.completions.create(model="mercury-2", messages=messages, max_completion_tokens=5)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content == ANSWER[:5]
    assert live.engine.seen[-1].params.max_new_tokens == 5


class Person(pydantic.BaseModel):
    name: str
    age: int


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_parsed_structured_output(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(model="mercury-2", messages=ask("Who?"), response_format=Person)
    assert reply.choices[0].message.parsed == Person(name="Ada", age=36)
    response = client.responses.parse(model="mercury-2", input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)


def test_streamed_structured_output(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="mercury-2", messages=ask("Who?"), response_format=Person) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)


def test_a_schema_that_cannot_be_enforced_is_a_400_naming_the_field(client: openai.OpenAI) -> None:
    schema = {"name": "s", "strict": True, "schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}
    wanted = {"type": "json_schema", "json_schema": schema}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mercury-2", messages=ask(), response_format=wanted)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}])
def test_a_whole_tool_loop(client: openai.OpenAI, choice: object) -> None:
    messages: list[Any] = ask("What is the weather in Paris?")
    reply = client.chat.completions.create(model="mercury-2", messages=messages, tools=[WEATHER], tool_choice=choice)
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "tool result: sunny"}]
    final = client.chat.completions.create(model="mercury-2", messages=messages, tools=[WEATHER])
    assert final.choices[0].message.content == "It is sunny."


def test_streamed_tool_calls_are_put_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="mercury-2", messages=ask("weather?"), tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "weather"
    assert message.tool_calls[0].function.parsed_arguments == {"city": "Paris"}


def test_responses_tool_loop(client: openai.OpenAI) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    with client.responses.stream(model="mercury-2", input="weather?", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        call = stream.get_final_response().output[0]
    assert "response.function_call_arguments.done" in kinds
    assert call.type == "function_call"
    history = [
        {"role": "user", "content": "weather?"},
        call.model_dump(exclude={"parsed_arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "tool result: sunny"},
    ]
    assert client.responses.create(model="mercury-2", input=history, tools=[tool]).output_text == "It is sunny."


def test_reasoning_is_visible_and_counted(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=ask(), reasoning_effort="low")
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].message.reasoning_content == "Let me think."
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == len("Let me think.") + 1


def test_diffusing_snapshots_end_in_the_answer(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="mercury-2", messages=ask(), stream=True, extra_body={"diffusing": True, "diffusion_detail": "tokens"}
    )
    chunks = list(stream)
    shown = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert shown[-1] == ANSWER
    frames = [c.quicksilver for c in chunks if hasattr(c, "quicksilver")]
    assert frames[0]["tokens"]


def test_a_stream_that_fails_raises(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="mercury-2", messages=ask("fail half way"), stream=True)
    with pytest.raises(openai.APIError, match="the worker died"):
        list(stream)


def test_completion_and_fill_in_the_middle(client: openai.OpenAI) -> None:
    assert client.completions.create(model="mercury-coder", prompt="def f(").choices[0].text == ANSWER
    filled = client.completions.create(model="mercury-coder", prompt="def f(", suffix="):\n")
    assert filled.choices[0].text == ANSWER
    chunks = client.completions.create(model="mercury-coder", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"nano", "mercury-2", "mercury-edit-2", "mercury-coder"} <= set(names)
    assert client.models.retrieve("mercury-2").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_refusals_have_type_param_and_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mercury-2", messages=ask(), temperature=3)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=ask())


def test_an_aborted_stream_gives_its_slot_back(client: openai.OpenAI, live: LiveServer) -> None:
    before = live.engine.num_aborted + live.engine.num_finished
    stream = client.chat.completions.create(model="mercury-2", messages=ask("a long poem"), stream=True)
    assert POEM.startswith(next(iter(stream)).choices[0].delta.content or "")
    stream.close()
    while live.engine.num_aborted + live.engine.num_finished == before:
        client.models.list()
    assert live.engine.num_open == 0


def test_responses_text(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="mercury-2", input="What is the capital of France?")
    assert reply.output_text == ANSWER
    assert reply.status == "completed"
    assert reply.usage is not None
    assert reply.usage.output_tokens == len(ANSWER)


def test_responses_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="mercury-2", input="What is the capital?", reasoning={"effort": "low"}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == ANSWER
    assert [e.sequence_number for e in events] == sorted({e.sequence_number for e in events})
    assert final.output_text == ANSWER
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_responses_cut_at_the_limit_are_incomplete(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="mercury-2", input="Hi", max_output_tokens=4)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"


async def test_async_client_streams(live: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model="mercury-2", messages=ask(), stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == ANSWER
