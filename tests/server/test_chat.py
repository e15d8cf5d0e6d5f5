"""/v1/chat/completions: plain answers, streams, and what both say at the end."""

from __future__ import annotations

from tests.server.conftest import HELLO, Served, chat, events, says

CHAT = "/v1/chat/completions"


async def test_answer_has_every_key_of_both_dialects(served: Served) -> None:
    reply = (await served.post(CHAT, chat())).json()
    message = reply["choices"][0]["message"]
    assert message["content"] == HELLO
    assert (message["role"], message["tool_calls"], message["tool_call_id"]) == ("assistant", [], None)
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert (reply["object"], reply["model"], reply["warning"]) == ("chat.completion", "mercury-2", None)
    assert reply["reasoning_summary"] is None
    assert reply["id"].startswith("chatcmpl-")
    assert reply["system_fingerprint"] == "fp_fake"


async def test_usage_adds_up_in_both_dialects(served: Served) -> None:
    usage = (await served.post(CHAT, chat())).json()["usage"]
    num_prompt = len(served.engine.seen[0].prompt_ids)
    assert usage["prompt_tokens"] == num_prompt
    assert usage["completion_tokens"] == len(HELLO.encode())
    assert usage["total_tokens"] == num_prompt + len(HELLO.encode())
    assert (usage["reasoning_tokens"], usage["cached_input_tokens"]) == (0, 0)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["quicksilver"]["forwards"] == 7


async def test_stream_appends_to_the_plain_content_and_ends_with_done(served: Served) -> None:
    response = await served.post(CHAT, chat(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == HELLO
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert {c["id"] for c in chunks} == {chunks[0]["id"]}
    assert all("usage" not in c for c in chunks)


async def test_usage_chunk_comes_last_and_only_when_asked(served: Served) -> None:
    chunks = events(await served.post(CHAT, chat(stream=True, stream_options={"include_usage": True})))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(HELLO.encode())
    assert all(c["usage"] is None for c in chunks[:-1])


async def test_reasoning_goes_to_its_own_channel_and_is_counted(served: Served) -> None:
    served.engine.script = says("hmm</think>\nYes")
    reply = (await served.post(CHAT, chat(reasoning_effort="low", reasoning_summary=True))).json()
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "Yes")
    assert reply["usage"]["reasoning_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["reasoning_summary"] == {"content": "hmm", "status": "complete"}
    assert served.engine.seen[0].think is not None
