"""`choice`: one of several labels, by likelihood."""

from __future__ import annotations

import pytest

from quicksilver.core import ScoreRequest, Scores
from tests.server.conftest import Served, chat, events
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"


async def test_the_likeliest_label_wins_and_probabilities_add_up(served: Served) -> None:
    served.engine.scorer = lambda r: Scores(((-3.0,), (-1.0,), (-2.0,)))
    reply = (await served.post(CHAT, chat(choice=["yes", "no", "maybe"]))).json()
    choice = reply["choices"][0]
    assert choice["message"]["content"] == "no"
    assert max(choice["probabilities"], key=choice["probabilities"].get) == "no"
    assert sum(choice["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert reply["usage"]["completion_tokens"] == sum(map(len, served.engine.scored[0].continuations))
    assert served.engine.seen == []


async def test_labels_are_scored_with_their_end(served: Served) -> None:
    await served.post(CHAT, chat(choice=["a", "ab"]))
    request: ScoreRequest = served.engine.scored[0]
    end_id = small_tokenizer().eos_ids[0]
    assert request.continuations == ((97, end_id), (97, 98, end_id))


async def test_a_choice_can_be_streamed(served: Served) -> None:
    chunks = events(
        await served.post(CHAT, chat(choice=["x", "y"], stream=True, stream_options={"include_usage": True}))
    )
    assert chunks[1]["choices"][0]["delta"] == {"content": "x"}
    assert chunks[2]["choices"][0]["probabilities"].keys() == {"x", "y"}
    assert chunks[3]["usage"]["completion_tokens"] == 4, "both labels, each with its end"


@pytest.mark.parametrize(
    "fields",
    [
        {"choice": []},
        {"choice": ["a", "a"]},
        {"choice": ["a", ""]},
        {"choice": ["a"], "n": 2},
        {"choice": ["a"], "logprobs": True},
        {"choice": ["a"], "response_format": {"type": "json_object"}},
        {"choice": ["x" * 1025]},
        {"choice": [str(i) for i in range(257)]},
    ],
)
async def test_contradictory_choices_are_refused(served: Served, fields: dict[str, object]) -> None:
    assert (await served.post(CHAT, chat(**fields))).status_code == 400


async def test_bounds_of_choice_are_allowed(served: Served) -> None:
    labels = ["x" * 1024, *(str(i) for i in range(255))]
    assert (await served.post(CHAT, chat(choice=labels))).status_code == 200
