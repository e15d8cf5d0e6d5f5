"""instructor: typed answers through tools and through schemas."""

from __future__ import annotations

import instructor
import openai
import pytest
from conftest import Server
from instructor.core.exceptions import InstructorRetryException
from questions import CITY, DESCRIBE, LIMIT, STORY, STORY_TOKENS, Person, user


@pytest.fixture(params=[instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def client(request: pytest.FixtureRequest, server: Server) -> instructor.Instructor:
    plain = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0)
    return instructor.from_openai(plain, mode=request.param)


def test_chat(client: instructor.Instructor) -> None:
    reply = client.chat.completions.create(
        model="mercury-2", response_model=None, messages=user(), temperature=0, max_tokens=LIMIT
    )
    assert CITY in reply.choices[0].message.content


def test_tools_and_schema(client: instructor.Instructor) -> None:
    person = client.chat.completions.create(
        model="mercury-2", response_model=Person, messages=user(DESCRIBE), max_tokens=LIMIT, max_retries=0
    )
    assert isinstance(person, Person)


def test_stream(client: instructor.Instructor) -> None:
    *_, person = client.chat.completions.create_partial(
        model="mercury-2", response_model=Person, messages=user(DESCRIBE), max_tokens=LIMIT, max_retries=0
    )
    assert isinstance(person.age, int)
    assert isinstance(person.name, str)


def test_refusal(client: instructor.Instructor) -> None:
    with pytest.raises(InstructorRetryException, match="not found"):
        client.chat.completions.create(model="gpt-9", response_model=Person, messages=user(DESCRIBE), max_retries=0)


def test_abort(client: instructor.Instructor, server: Server) -> None:
    with server.expecting_an_abort():
        stream = client.chat.completions.create(
            model="mercury-2",
            response_model=None,
            messages=user(STORY),
            stream=True,
            max_tokens=STORY_TOKENS,
            temperature=0,
        )
        next(iter(stream))
        stream.close()
