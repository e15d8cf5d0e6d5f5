"""Items and events of a response."""

from __future__ import annotations

from quicksilver.errors import EngineDied, OutputInvalid, QuicksilverError
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.responses.format import Item, ResponsesFormat
from quicksilver.server.endpoints.responses.plan import as_chat
from quicksilver.server.endpoints.responses.wire import ResponsesBody
from quicksilver.text.channels import Channel
from tests.server.conftest import Served


async def make_format(served: Served) -> ResponsesFormat:
    body = ResponsesBody.model_validate({"model": "nano", "input": "Hi"})
    return ResponsesFormat(await plan_chat(as_chat(body), served.services, ""), body, served.services)


async def test_events_are_named_and_numbered(served: Served) -> None:
    form = await make_format(served)
    encoded = [form.encode(event) for event in form.begin()]
    assert encoded[0].startswith(b"event: response.created\n")
    assert [f'"sequence_number":{i}'.encode() in chunk for i, chunk in enumerate(encoded)] == [True, True]


async def test_a_failure_of_the_server_hides_its_code_and_one_of_the_request_does_not(served: Served) -> None:
    form = await make_format(served)

    def code_of(error: QuicksilverError) -> str:
        (event,) = form.failure(error)
        return str(event["response"]["error"]["code"])

    assert code_of(EngineDied("gone")) == "server_error"
    assert code_of(OutputInvalid("no integer")) == "output_invalid"


def test_items_have_the_prefix_of_their_kind() -> None:
    assert [Item(channel).id.split("_")[0] for channel in (Channel.CONTENT, Channel.REASONING, Channel.TOOL_CALL)] == [
        "msg",
        "rs",
        "fc",
    ]
    call = Item(Channel.TOOL_CALL, name="f", text="{}").reply("completed")
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", "{}")
