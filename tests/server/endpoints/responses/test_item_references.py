"""Items of the input that name stored items by their ids."""

from __future__ import annotations

from tests.server.conftest import HELLO, Served, says
from tests.server.endpoints.responses.test_route import RESPONSES, ask, prompt_text
from tests.server.endpoints.responses.test_stored_route import call, create
from tests.support.bank import Bank


async def test_a_reference_to_an_item_of_the_conversation_adds_nothing(served: Served) -> None:
    first = await create(served)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    await create(served, [reference, {"role": "user", "content": "x"}], previous_response_id=first["id"])
    assert prompt_text(served).count("Hello, ") == 1
    unknown = {"type": "item_reference", "id": "msg_unknown"}
    assert (await served.post(RESPONSES, ask([unknown]))).json()["error"]["param"] == "input.0"


async def test_stored_outputs_are_named_by_their_ids(served: Served) -> None:
    """Clients send the whole conversation each time, with references in place of what the server wrote."""
    served.engine.script = says('<tool_call>{"name": "look", "arguments": {"at": "Oslo"}}</tool_call>')
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    (made,) = (await create(served, "Weather?", tools=tools))["output"]
    served.engine.script = says("It rains.")
    question = {"role": "user", "content": "Weather?"}
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    turns = [question, {"type": "item_reference", "id": made["id"]}, result]
    second = await create(served, turns, tools=tools)
    served.engine.script = says(HELLO)
    reference = {"type": "item_reference", "id": second["output"][0]["id"]}
    third = await create(served, [*turns, reference, reference, {"role": "user", "content": "Thanks"}], tools=tools)
    text = prompt_text(served)
    places = [text.index(part) for part in ("Weather?", "Oslo", "rain", "It rains.", "Thanks")]
    assert places == sorted(places)
    assert text.count("It rains.") == 1
    listed = (await served.get(f"{RESPONSES}/{third['id']}/input_items?order=asc")).json()["data"]
    named = [made["id"], reference["id"]]
    assert [item["id"] for item in listed if item["id"] in named] == named
    counted = (await served.post(f"{RESPONSES}/input_tokens", ask([question, reference]))).json()["input_tokens"]
    assert counted > (await served.post(f"{RESPONSES}/input_tokens", ask([question]))).json()["input_tokens"]


async def test_a_named_output_becomes_an_item_of_its_own_in_a_conversation(served: Served) -> None:
    (item,) = (await create(served))["output"]
    conversation = (await served.post("/v1/conversations", {})).json()["id"]
    reference = {"type": "item_reference", "id": item["id"]}
    await create(served, [reference, {"role": "user", "content": "And?"}], conversation=conversation)
    listed = (await served.get(f"/v1/conversations/{conversation}/items?order=asc")).json()["data"]
    assert [each["role"] for each in listed] == ["assistant", "user", "assistant"]
    assert item["id"] not in [each["id"] for each in listed]
    assert listed[0]["content"] == item["content"]


async def test_an_output_is_not_named_where_its_response_is_gone_or_of_another_project(
    served: Served, bank: Bank
) -> None:
    first, second = await bank.key(), await bank.key()
    made = (await served.post(RESPONSES, ask(), headers=first)).json()
    body = ask([{"type": "item_reference", "id": made["output"][0]["id"]}])
    assert (await served.post(RESPONSES, body, headers=second)).status_code == 400
    assert (await served.post(RESPONSES, body, headers=first)).status_code == 200
    await call(served, "DELETE", f"{RESPONSES}/{made['id']}", headers=first)
    assert (await served.post(RESPONSES, body, headers=first)).status_code == 400


async def test_named_items_are_bounded_together(served: Served) -> None:
    served.configure(body_bytes=4000)
    served.engine.script = says("long " * 300)
    made = [(await create(served))["output"][0]["id"] for _ in range(3)]
    body = ask([{"type": "item_reference", "id": each} for each in made])
    assert (await served.post(RESPONSES, body)).json()["error"]["code"] == "context_length_exceeded"
