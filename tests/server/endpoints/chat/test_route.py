"""/v1/chat/completions: whole replies and streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quicksilver.core import DecoderName, Delta, FinishReason, Request, TokenLogprob, Usage
from quicksilver.errors import EngineDied, EngineUnavailable
from quicksilver.text.chat import CUT_THOUGHT, ChatTemplate
from tests.server.conftest import HELLO, Served, chat, content_of, events, says
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

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


async def test_cached_tokens_come_from_the_engine(served: Served) -> None:
    served.engine.script = lambda r: [Delta(r.id, finish=FinishReason.STOP, usage=Usage(9, cached_tokens=5))]
    usage = (await served.post(CHAT, chat())).json()["usage"]
    assert (usage["cached_input_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (5, 5)


async def test_stream_appends_to_the_plain_content_and_ends_with_done(served: Served) -> None:
    response = await served.post(CHAT, chat(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content_of(chunks) == HELLO
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert {c["id"] for c in chunks} == {chunks[0]["id"]}
    assert all("usage" not in c for c in chunks)


@pytest.mark.parametrize("piece_len", [1, 2, 3, 7])
async def test_no_chunk_ever_splits_a_code_point(served: Served, piece_len: int) -> None:
    served.engine.script = says(HELLO, piece_len)
    chunks = events(await served.post(CHAT, chat(stream=True)))
    assert content_of(chunks) == HELLO
    assert all("�" not in c["choices"][0]["delta"].get("content", "") for c in chunks)


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


async def test_streamed_reasoning_and_summary(served: Served) -> None:
    served.engine.script = says("one. two</think>Yes")
    body = chat(stream=True, reasoning_effort="medium", reasoning_summary=True, reasoning_summary_wait=True)
    chunks = events(await served.post(CHAT, body))
    reasoning = "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks)
    assert (reasoning, content_of(chunks)) == ("one. two", "Yes")
    assert chunks[-1]["reasoning_summary"] == {"content": "one. two", "status": "complete"}


@pytest.mark.parametrize(("effort", "status"), [("none", "skipped"), ("low", "unavailable")])
async def test_a_summary_without_reasoning_has_a_status(served: Served, effort: str, status: str) -> None:
    served.engine.script = says("</think>ok" if effort == "low" else "ok")
    reply = (await served.post(CHAT, chat(reasoning_effort=effort, reasoning_summary=True))).json()
    assert reply["reasoning_summary"] == {"content": None, "status": status}


@pytest.mark.parametrize("effort", ["none", "minimal", "instant", "low", "medium", "high", "xhigh"])
async def test_every_effort_leaves_room_for_the_answer(served: Served, effort: str) -> None:
    await served.post(CHAT, chat(reasoning_effort=effort, max_tokens=100))
    think = served.engine.seen[0].think
    assert think is None or 0 < think.max_tokens < 100


async def test_stop_string_ends_the_answer_and_the_engines_work(served: Served) -> None:
    served.engine.script = says("one two three four five six", piece_len=2)
    reply = (await served.post(CHAT, chat(stop=" thr"))).json()
    assert reply["choices"][0]["message"]["content"] == "one two"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert served.engine.num_aborted == 1
    assert reply["usage"]["completion_tokens"] == len("one two thr")


async def test_sampling_fields_reach_the_engine(served: Served) -> None:
    fields: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 42,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": -100},
        "max_tokens": 9,
        "decoder": {"name": "confidence", "canvas_len": 32, "rule": "factor", "factor": 0.5},
    }
    await served.post(CHAT, chat(**fields))
    params = served.engine.seen[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0, 0.5, 7, 0.1, 42)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.5)
    assert (params.logit_bias, params.max_new_tokens) == ({5: -100}, 9)
    assert (params.decoder.name, params.decoder.canvas_len, params.decoder.factor) == ("confidence", 32, 0.5)
    assert small_tokenizer().eos_ids == params.stop_ids


async def test_answers_share_the_prompt_and_have_seeds_of_their_own(served: Served) -> None:
    reply = (await served.post(CHAT, chat(n=3, seed=10))).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
    assert sorted(r.params.seed for r in served.engine.seen) == [10, 11, 12]
    assert len({r.prompt_ids for r in served.engine.seen}) == 1
    assert reply["usage"]["prompt_tokens"] == len(served.engine.seen[0].prompt_ids)
    assert reply["usage"]["completion_tokens"] == 3 * len(HELLO.encode())


async def test_streamed_answers_have_an_index(served: Served) -> None:
    chunks = events(await served.post(CHAT, chat(n=3, stream=True)))
    for index in range(3):
        own = [c for c in chunks if c["choices"][0]["index"] == index]
        assert content_of(own) == HELLO
        assert own[-1]["choices"][0]["finish_reason"] == "stop"


async def test_logprobs_name_content_tokens_by_text_and_bytes(served: Served) -> None:
    served.engine.script = scored
    reply = (await served.post(CHAT, chat(logprobs=True, top_logprobs=1))).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert [(e["token"], e["bytes"], e["logprob"]) for e in content] == [("o", [111], -0.5), ("k", [107], -0.5)]
    assert content[0]["top_logprobs"] == [{"token": "x", "logprob": -9999.0, "bytes": [120]}]
    assert served.engine.seen[0].params.logprobs == 1


async def test_streamed_logprobs_come_with_their_tokens(served: Served) -> None:
    served.engine.script = scored
    chunks = events(await served.post(CHAT, chat(logprobs=True, stream=True)))
    received = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [e["token"] for entry in received for e in entry["content"]] == ["o", "k"]


def scored(request: Request) -> list[Step]:
    ids = tuple(small_tokenizer().encode("ok"))
    logprobs = tuple(TokenLogprob(i, -0.5, ((ord("x"), float("-inf")),)) for i in ids)
    return [Delta(request.id, ids, logprobs, finish=FinishReason.STOP, usage=Usage(1, 0, 2))]


async def test_a_limit_beyond_the_context_is_lowered_with_a_warning(served: Served) -> None:
    reply = (await served.post(CHAT, chat(max_tokens=900_000))).json()
    room = served.engine.info.context_len - len(served.engine.seen[0].prompt_ids)
    assert served.engine.seen[0].params.max_new_tokens == room
    assert str(room) in reply["warning"]


async def test_a_prompt_that_fills_the_context_is_refused(served: Served) -> None:
    response = await served.post(CHAT, chat("x" * 5000))
    assert response.status_code == 400
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (
        "context_length_exceeded",
        "messages",
    )


async def test_an_engine_that_is_starting_is_a_503_with_retry_after(served: Served) -> None:
    served.engine.is_ready = False
    for stream in (False, True):
        response = await served.post(CHAT, chat(stream=stream))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.headers["x-should-retry"] == "true"


async def test_an_engine_that_dies_mid_stream_is_an_error_chunk_without_done(served: Served) -> None:
    served.engine.script = lambda r: [*spoken(r, range(97, 110))[:2], EngineDied("the worker died")]
    response = await served.post(CHAT, chat(stream=True))
    assert response.status_code == 200
    assert "[DONE]" not in response.text
    assert '"code":"engine_died"' in response.text.split("\n\n")[-2]
    assert (await served.post(CHAT, chat())).status_code == 503


async def test_a_row_that_fails_alone_is_a_coded_error(served: Served) -> None:
    failed = Delta("x", finish=FinishReason.ERROR, error="non_finite: the logits were not finite")
    served.engine.script = lambda r: [failed]
    error = (await served.post(CHAT, chat())).json()["error"]
    assert (error["code"], error["message"]) == ("non_finite", "the logits were not finite")


async def test_an_answer_that_the_engine_aborts_has_no_finish_reason(served: Served) -> None:
    served.engine.script = lambda r: [Delta(r.id, (97,)), Delta(r.id, finish=FinishReason.ABORT, usage=Usage(1, 0, 1))]
    response = await served.post(CHAT, chat())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "aborted")


async def test_a_full_queue_on_any_of_several_answers_refuses_them_all(served: Served) -> None:
    served.engine.script = lambda r: [EngineUnavailable("queue full")] if r.id.endswith("/1") else says(HELLO)(r)
    response = await served.post(CHAT, chat(n=3))
    assert response.status_code == 503


async def test_an_unexpected_error_reveals_no_details(served: Served) -> None:
    served.engine.script = lambda r: [RuntimeError("secret prompt text")]
    response = await served.post(CHAT, chat())
    assert response.status_code == 500
    assert "secret" not in response.text
    streamed = await served.post(CHAT, chat(stream=True))
    assert streamed.status_code == 500
    assert "secret" not in streamed.text


async def test_unknown_fields_are_ignored_and_known_ones_that_cannot_be_honoured_are_named(served: Served) -> None:
    fine = chat(service_tier="auto", prompt_cache_key="k", nextEdit=True, store=False, user="u", metadata={"a": "b"})
    reply = await served.post(CHAT, fine)
    assert reply.status_code == 200
    assert reply.json()["warning"] == "ignored fields: service_tier, prompt_cache_key, nextEdit"
    for field, value in (("modalities", ["audio"]), ("top_logprobs", 2)):
        response = await served.post(CHAT, chat(**{field: value}))
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(field)


async def test_a_stream_names_ignored_fields_in_its_first_chunk(served: Served) -> None:
    first, *others = events(await served.post(CHAT, chat(stream=True, temprature=0.1)))
    assert first["warning"] == "ignored fields: temprature"
    assert all("warning" not in chunk for chunk in others)
    assert all("warning" not in chunk for chunk in events(await served.post(CHAT, chat(stream=True))))


async def test_a_decoder_can_be_given_as_its_name(served: Served) -> None:
    assert (await served.post(CHAT, chat(decoder="ar"))).status_code == 200
    assert served.engine.seen[0].params.decoder.name is DecoderName.AR


@pytest.mark.parametrize(
    ("decoder", "param", "message"),
    [("greedy", "decoder", "'verify'"), (5, "decoder", 'an object such as {"name": "ar"}')],
)
async def test_another_value_for_the_decoder_is_refused_with_an_example(
    served: Served, decoder: object, param: str, message: str
) -> None:
    response = await served.post(CHAT, chat(decoder=decoder))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert "DecoderBody" not in error["message"]


async def test_an_image_is_refused_in_words_that_name_the_alternative(served: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    response = await served.post(CHAT, chat(messages=[{"role": "user", "content": [image]}]))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.0.type")
    assert "only text is supported here" in error["message"]
    assert "image_url" in error["message"]


async def test_a_warning_names_at_most_a_few_fields(served: Served) -> None:
    reply = (await served.post(CHAT, chat(**{f"{i}{'x' * 200}": 1 for i in range(100)}))).json()
    assert reply["warning"].endswith("and 92 more")
    assert len(reply["warning"]) < 700


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"decoder": {"kind": "confidence"}}, "decoder.kind"),
        ({"decoder": {"name": "verify", "canvas": 8}}, "decoder.canvas"),
        ({"response_format": {"type": "regex", "pattern": "a+", "flags": "i"}}, "response_format.flags"),
        # The format and its field have the same name, and the path ends at the field.
        ({"response_format": {"type": "grammar", "grammar": "x", "syntax": "lark"}}, "response_format.grammar"),
    ],
)
async def test_unknown_fields_inside_our_own_objects_are_refused(
    served: Served, fields: dict[str, object], param: str
) -> None:
    response = await served.post(CHAT, chat(**fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert "; GET /openapi.json lists the fields" in response.json()["error"]["message"]
    assert served.engine.seen == []


async def test_an_effort_that_the_template_cannot_honour_is_a_warning(served: Served) -> None:
    assert (await served.post(CHAT, chat(reasoning_effort="low"))).json()["warning"] is None
    plain = ChatTemplate.from_source(served.services.tokenizer, "{{ messages[0].content }}{% if tools %}{% endif %}")
    served.app.state.services = replace(served.services, template=plain)
    assert "no effect" in (await served.post(CHAT, chat(reasoning_effort="low"))).json()["warning"]
    assert (await served.post(CHAT, chat(reasoning_effort="none"))).json()["warning"] is None


async def test_a_thought_ends_with_a_closing_line_within_its_budget(served: Served) -> None:
    await served.post(CHAT, chat(reasoning_effort="medium", max_tokens=100))
    think = served.engine.seen[0].think
    assert think is not None
    assert served.services.tokenizer.decode(think.cut_ids) == CUT_THOUGHT
    assert think.max_tokens + len(think.cut_ids) == 50


async def test_extra_body_counts_as_fields(served: Served) -> None:
    await served.post(CHAT, chat(extra_body={"seed": 3, "temperature": 0.1}, temperature=0.2))
    params = served.engine.seen[0].params
    assert (params.seed, params.temperature) == (3, 0.2)


async def test_realtime_asks_for_a_smaller_canvas(served: Served) -> None:
    await served.post(CHAT, chat(realtime=True))
    await served.post(CHAT, chat())
    assert served.engine.seen[0].params.decoder.canvas_len < served.engine.seen[1].params.decoder.canvas_len
