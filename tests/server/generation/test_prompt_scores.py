"""Log-probabilities of prompts: `echo` with `logprobs`, `prompt_logprobs`, `max_tokens: 0`."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.core import Delta, FinishReason, Request, TokenLogprob, Usage
from quicksilver.errors import InvalidRequest
from tests.server.conftest import Served, chat, events
from tests.support.fake_engine import Step
from tests.support.small_tokenizer import small_tokenizer

PATH = "/v1/completions"
PROMPT = "The sky is"


def ids_of(text: str) -> list[int]:
    return list(small_tokenizer().encode(text))


def one_token(request: Request) -> list[Step]:
    entry = TokenLogprob(9, -0.125, ((9, -0.125),))
    return [Delta(request.id, (9,), (entry,), finish=FinishReason.LENGTH, usage=Usage(5, 4, 1))]


def ends_at_once(request: Request) -> list[Step]:
    stop = TokenLogprob(request.params.stop_ids[0], -0.5, ())
    return [Delta(request.id, (), (stop,), finish=FinishReason.STOP, usage=Usage(5, 4, 0))]


def body(**fields: object) -> dict[str, Any]:
    return {"model": "nano", "prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 2, **fields}


async def test_an_echoed_prompt_is_listed_with_its_probabilities(served: Served) -> None:
    served.engine.script = one_token
    reply = (await served.post(PATH, body())).json()
    (choice,) = reply["choices"]
    ids, tokenizer = ids_of(PROMPT), small_tokenizer()
    logprobs = choice["logprobs"]
    assert choice["text"] == PROMPT + tokenizer.token_text(9)
    assert logprobs["tokens"] == [tokenizer.token_text(i) for i in (*ids, 9)]
    assert logprobs["token_logprobs"] == [None, *[-0.5] * (len(ids) - 1), -0.125]
    assert logprobs["top_logprobs"][0] is None
    assert list(logprobs["top_logprobs"][1].values()) == [-0.25, -0.5]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [
        choice["text"][at:].startswith(t) for at, t in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    ]
    (scored,) = served.engine.scored
    assert (*scored.prompt_ids, *scored.continuations[0]) == tuple(ids)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_token_that_ends_the_answer_is_listed(served: Served) -> None:
    """Harnesses drop the last entry, so an entry must follow the prompt even if the answer is empty."""
    served.engine.script = ends_at_once
    (choice,) = (await served.post(PATH, body())).json()["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(PROMPT)) + 1
    assert choice["logprobs"]["token_logprobs"][-1] == -0.5
    assert choice["text"] == PROMPT
    (plain,) = (await served.post(PATH, body(echo=False))).json()["choices"]
    assert plain["logprobs"]["tokens"] == []


async def test_a_stream_sends_the_prompt_first(served: Served) -> None:
    served.engine.script = one_token
    whole = (await served.post(PATH, body())).json()["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in events(await served.post(PATH, body(stream=True))):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole


async def test_prompts_as_lists_of_ids(served: Served) -> None:
    served.engine.script = one_token
    prompts = [ids_of(PROMPT), ids_of("Grass")]
    choices = (await served.post(PATH, body(prompt=prompts))).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [len(ids) + 1 for ids in prompts]


async def test_the_end_token_may_come_first_and_no_other_special_token_may(served: Served) -> None:
    tokenizer = small_tokenizer()
    end, (other, *_) = tokenizer.eos_ids[-1], sorted(set(tokenizer.special_tokens.values()) - set(tokenizer.eos_ids))
    assert (await served.post(PATH, body(prompt=[[end, 70, 71]]))).status_code == 200
    for ids in ([70, end], [other, 70]):
        refused = await served.post(PATH, body(prompt=[[70], ids]))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == f"prompt.1.{0 if ids[0] == other else 1}"


async def test_no_tokens_requested_means_no_answer(served: Served) -> None:
    reply = (await served.post(PATH, body(max_tokens=0))).json()
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(PROMPT))
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["usage"]["prompt_tokens"] == len(ids_of(PROMPT))
    empty = (await served.post("/v1/chat/completions", chat(max_tokens=0))).json()["choices"][0]
    assert (empty["message"]["content"], empty["finish_reason"]) == ("", "length")
    assert served.engine.seen == []


async def test_prompt_logprobs_in_vllm_form(served: Served) -> None:
    served.engine.script = one_token
    (choice,) = (await served.post(PATH, body(echo=False, logprobs=None, prompt_logprobs=1))).json()["choices"]
    first, second, *_ = choice["prompt_logprobs"]
    token_id = ids_of(PROMPT)[1]
    assert first is None
    assert second[str(token_id)] == {
        "logprob": -0.5, "rank": 7, "decoded_token": small_tokenizer().token_text(token_id),
    }  # fmt: skip
    assert second["0"]["rank"] == 1
    assert choice["logprobs"] is None
    reply = (await served.post("/v1/chat/completions", chat(prompt_logprobs=0))).json()
    assert len(reply["prompt_logprobs"]) == 1 + len(served.engine.scored[-1].continuations[0])


async def test_prompt_logprobs_are_not_streamed(served: Served) -> None:
    for path, sent in (
        (PATH, body(prompt_logprobs=1, stream=True)),
        ("/v1/chat/completions", chat(prompt_logprobs=1, stream=True)),
    ):
        refused = await served.post(path, sent)
        assert refused.json()["error"]["param"] == "prompt_logprobs"


async def test_a_prompt_that_is_too_long_to_score_is_refused_by_its_name(served: Served) -> None:
    def refuse(_: object) -> None:
        raise InvalidRequest("too many", param="continuations")

    served.engine.scorer = refuse  # type: ignore[assignment]
    refused = await served.post(PATH, body())
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("prompt", ["x", [[70]]])
async def test_a_prompt_of_one_token_has_no_probabilities(served: Served, prompt: object) -> None:
    served.engine.script = one_token
    (choice,) = (await served.post(PATH, body(prompt=prompt))).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.125]
