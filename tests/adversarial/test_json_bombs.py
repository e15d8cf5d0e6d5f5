"""Bodies of very many small values: refused before they are parsed, since parsing holds the interpreter lock."""

from __future__ import annotations

import json

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.http.body import MAX_JSON_VALUES, check_num_values, parse_body
from tests.server.conftest import Served, chat

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("value", ["[]", "{}", "1", '"x"', "[1]", '{"a":1}'])
@pytest.mark.parametrize("field", ["messages", "ignored", "tools"])
async def test_a_body_of_very_many_values_is_a_400(served: Served, field: str, value: str) -> None:
    rest = json.dumps(chat())[1:]
    raw = f'{{"{field}": [{", ".join([value] * (MAX_JSON_VALUES + 1))}], {rest}'.encode()
    response = await served.post(CHAT, raw)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_separators_inside_text_do_not_count(served: Served) -> None:
    text = '[{"a\\\\": 1}, ' * MAX_JSON_VALUES
    for content in (text, text + "\\", text + '"'):
        body = parse_body(json.dumps(chat(content)).encode(), ChatBody)
        assert body.messages[0].content == content


@pytest.mark.parametrize("escape", [b'\\"', b"\\\\", b'\\\\\\"'])
def test_escapes_do_not_hide_values(escape: bytes) -> None:
    """A quote after an even number of backslashes ends a string."""
    values = b"[" + b"[]," * (MAX_JSON_VALUES + 1) + b"[]]"
    with pytest.raises(InvalidRequest):
        check_num_values(b'{"a": "' + escape + b'", "b": ' + values + b"}")


@pytest.mark.parametrize("field", ["metadata", "logit_bias"])
async def test_an_object_of_many_entries_is_refused_by_its_size(served: Served, field: str) -> None:
    """With one message, not with one for each entry."""
    entries = {f"k{i}": [] for i in range(50_000)}
    response = await served.post(CHAT, chat(**{field: entries}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert "entries" in response.json()["error"]["message"]
