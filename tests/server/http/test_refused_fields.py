"""Fields that change the answer and are not supported are refused by name; neutral values are not."""

from __future__ import annotations

import pytest

from quicksilver.server.http.refused_fields import REFUSED
from tests.server.conftest import Served, chat

# Read by chat bodies.
SUPPORTED = {"ignore_eos", "min_tokens", "prediction", "prompt_logprobs"}


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - SUPPORTED))
async def test_a_set_field_is_refused_by_name(served: Served, name: str) -> None:
    refused = await served.post("/v1/chat/completions", chat(**{name: "something else"}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert refused.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize("value", [None, [], {}])
async def test_empty_values_are_neutral(served: Served, value: object) -> None:
    fields = dict.fromkeys(sorted(REFUSED.keys() - SUPPORTED), value)
    assert (await served.post("/v1/chat/completions", chat(**fields))).status_code == 200


async def test_values_without_effect_are_neutral(served: Served) -> None:
    fields = {name: values[-1] for name, values in REFUSED.items() if values and name not in SUPPORTED}
    assert (await served.post("/v1/chat/completions", chat(**fields))).status_code == 200


async def test_an_unknown_field_is_ignored(served: Served) -> None:
    reply = await served.post("/v1/chat/completions", chat(frobnicate=1))
    assert reply.status_code == 200
    assert "frobnicate" in reply.json()["warning"]
