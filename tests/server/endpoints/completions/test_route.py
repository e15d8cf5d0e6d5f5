"""/v1/fim/completions and /v1/completions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request, TokenLogprob, Usage
from tests.server.conftest import HELLO, Served, events, says
from tests.support.fake_engine import Step
from tests.support.small_tokenizer import SPECIALS, small_tokenizer

FIM, PLAIN = "/v1/fim/completions", "/v1/completions"
KEYS = {"id", "object", "created", "model", "choices", "usage", "warning"}


def decoded(request: Request) -> str:
    return "".join(map(small_tokenizer().token_text, request.prompt_ids))


async def test_fim_reply_shape(served: Served) -> None:
    reply = (await served.post(FIM, {"model": "mercury-edit-2", "prompt": "def f(", "suffix": "):"})).json()
    assert set(reply) >= KEYS
    assert (reply["object"], reply["model"]) == ("text_completion", "mercury-edit-2")
    assert reply["id"].startswith("cmpl-")
    assert reply["choices"][0]["text"] == HELLO
    assert reply["usage"]["reasoning_tokens"] == 0


async def test_fim_prompt_uses_the_models_own_tokens(served: Served) -> None:
    await served.post(FIM, {"model": "mercury-coder", "prompt": "def f(", "suffix": "):\n  pass"})
    assert decoded(served.engine.seen[0]) == "<|fim_prefix|>def f(<|fim_suffix|>):\n  pass<|fim_middle|>"


async def test_fim_defaults(served: Served) -> None:
    served.engine.script = says("first\nsecond\n\nthird")
    reply = (await served.post(FIM, {"model": "mercury-coder", "prompt": "a", "suffix": "<|endoftext|>"})).json()
    assert reply["choices"][0]["text"] == "first\nsecond"
    assert served.engine.seen[0].params.max_new_tokens == 512
    assert served.engine.seen[0].params.temperature == 0
    assert decoded(served.engine.seen[0]) == "<|fim_prefix|>a<|fim_suffix|><|fim_middle|>"


async def test_fim_own_stops_replace_the_defaults(served: Served) -> None:
    served.engine.script = says("first\n\nsecond;third")
    body = {"model": "mercury-coder", "prompt": "a", "stop": [";"]}
    assert (await served.post(FIM, body)).json()["choices"][0]["text"] == "first\n\nsecond"


async def test_a_long_file_is_cut_to_fit_and_never_refused(served: Served) -> None:
    body = {"model": "mercury-coder", "prompt": "x" * 9000 + "END", "suffix": "START" + "y" * 9000}
    assert (await served.post(FIM, body)).status_code == 200
    request = served.engine.seen[0]
    assert len(request.prompt_ids) + request.params.max_new_tokens <= served.engine.info.context_len
    assert "END<|fim_suffix|>START" in decoded(request)


async def test_tags_in_code_stay_code(served: Served) -> None:
    served.engine.script = says("x = '<think>'")
    body = {"model": "mercury-coder", "prompt": "<|mask|><|im_start|>", "suffix": ""}
    served.engine.script = lambda r: [
        Delta(r.id, tuple(small_tokenizer().encode("x = '<think>'")), finish=FinishReason.STOP, usage=Usage(1, 0, 13))
    ]
    assert (await served.post(FIM, body)).json()["choices"][0]["text"] == "x = '<think>'"
    special = set(small_tokenizer().special_tokens.values())
    assert sum(i in special for i in served.engine.seen[0].prompt_ids) == 3


def teach(served: Served) -> None:
    """Weights trained on reserved tokens for gaps and edits: their middle continues the prefix."""
    names = tuple(name.replace("fim_", "reserved_") for name in SPECIALS)
    roles = {"fim_prefix": 260, "fim_suffix": 261, "fim_middle": 262, "edit_open": 1, "edit_close": 2}
    served.services = replace(served.services, tokenizer=small_tokenizer(names).with_roles(roles))
    served.app.state.services = served.services


async def test_skill_weights_repeat_the_word_at_the_cursor_and_it_is_sent_once(served: Served) -> None:
    teach(served)
    served.engine.script = says(" compute(x);y")
    body = {"model": "mercury-coder", "prompt": "x = comp", "suffix": "\n", "stop": ["comp", ";"]}
    reply = (await served.post(FIM, body)).json()
    assert reply["choices"][0]["text"] == "ute(x)"
    assert decoded(served.engine.seen[0]).endswith("<|fim_prefix|>x =")
    assert served.engine.seen[0].constraint == ConstraintSpec(lead=" comp")
    chunks = events(await served.post(FIM, {**body, "stream": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == "ute(x)"


async def test_skill_weights_repeat_a_trailing_space_without_a_constraint(served: Served) -> None:
    teach(served)
    served.engine.script = says(" compute(x)")
    reply = (await served.post(FIM, {"model": "mercury-coder", "prompt": "x = ", "suffix": "\n"})).json()
    assert (reply["choices"][0]["text"], served.engine.seen[0].constraint) == ("compute(x)", None)


@pytest.mark.parametrize("field", [{"echo": True}, {"return_token_ids": True}, {"logprobs": 0}])
async def test_a_prompt_whose_tokens_are_returned_is_encoded_as_sent(served: Served, field: dict[str, object]) -> None:
    teach(served)
    await served.post(PLAIN, {"model": "mercury-coder", "prompt": "x = comp", "suffix": "\n", **field})
    assert decoded(served.engine.seen[0]).endswith("<|fim_prefix|>x = comp")
    assert served.engine.seen[0].constraint is None


async def test_lead_determines_how_a_continuation_begins(served: Served) -> None:
    served.engine.script = says("so it goes")
    reply = await served.post(PLAIN, {"model": "mercury-coder", "prompt": "And", "lead": "so"})
    assert reply.json()["choices"][0]["text"] == "so it goes"
    assert served.engine.seen[0].constraint == ConstraintSpec(lead="so")
    refused = await served.post(PLAIN, {"model": "mercury-coder", "prompt": "a", "suffix": "b", "lead": "c"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lead")


async def test_fim_stream(served: Served) -> None:
    body = {"model": "mercury-coder", "prompt": "a", "suffix": "b", "stream": True, "temperature": 0}
    chunks = events(await served.post(FIM, {**body, "stream_options": {"include_usage": True}}))
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == HELLO
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == len(HELLO.encode())


async def test_completions_with_a_suffix_are_fim(served: Served) -> None:
    await served.post(PLAIN, {"model": "mercury-coder", "prompt": "a", "suffix": "b"})
    assert decoded(served.engine.seen[0]).startswith("<|fim_prefix|>a")


async def test_plain_completion_continues_the_text(served: Served) -> None:
    reply = (await served.post(PLAIN, {"model": "nano", "prompt": "Once"})).json()
    assert decoded(served.engine.seen[0]) == "Once"
    assert reply["choices"][0]["text"] == HELLO


async def test_several_prompts_and_answers_are_numbered_prompt_by_prompt(served: Served) -> None:
    served.engine.script = lambda r: says(f"<{decoded(r)}>")(r)
    reply = (await served.post(PLAIN, {"model": "nano", "prompt": ["ab", "c"], "n": 2})).json()
    assert [c["text"] for c in reply["choices"]] == ["<ab>", "<ab>", "<c>", "<c>"]
    assert reply["usage"]["prompt_tokens"] == 3


async def test_token_ids_are_a_prompt_but_special_ones_are_refused(served: Served) -> None:
    await served.post(PLAIN, {"model": "nano", "prompt": [104, 105]})
    assert served.engine.seen[0].prompt_ids == (104, 105)
    for bad in (259, 511, 512, 10**6):
        response = await served.post(PLAIN, {"model": "nano", "prompt": [104, bad]})
        assert response.status_code == (200 if bad == 511 else 400), bad


async def test_special_ids_may_be_allowed_for_rendered_templates(served: Served) -> None:
    body = {"model": "nano", "prompt": [257, 104, 258], "allow_special_ids": True}
    assert (await served.post(PLAIN, body)).status_code == 200
    assert served.engine.seen[0].prompt_ids == (257, 104, 258)
    assert (await served.post(PLAIN, {**body, "prompt": [104, 512]})).status_code == 400
    await served.post(PLAIN, {**body, "prompt": "<|im_end|>"})
    assert set(served.engine.seen[1].prompt_ids).isdisjoint(small_tokenizer().special_tokens.values())


@pytest.mark.parametrize(("stop_ids", "expected"), [(None, (258, 256)), ([], ()), ([260, 7], (260, 7))])
async def test_stop_ids_replace_the_models_own(served: Served, stop_ids: object, expected: tuple[int, ...]) -> None:
    await served.post(PLAIN, {"model": "nano", "prompt": "a", "stop_ids": stop_ids})
    assert served.engine.seen[0].params.stop_ids == expected


async def test_token_ids_are_returned_on_request(served: Served) -> None:
    served.engine.script = says("<tool_call>call</tool_call>")
    body = {"model": "nano", "prompt": "a", "n": 2}
    assert "token_ids" not in (await served.post(PLAIN, body)).json()["choices"][0]
    choices = (await served.post(PLAIN, {**body, "return_token_ids": True})).json()["choices"]
    ids = small_tokenizer().encode_markup("<tool_call>call</tool_call>")
    assert [(choice["text"], choice["token_ids"]) for choice in choices] == [("call", ids)] * 2


async def test_token_ids_of_a_stream_add_up_to_the_answers(served: Served) -> None:
    served.engine.script = says(f"{HELLO}<tool_call></tool_call>")
    body = {"model": "nano", "prompt": "a", "stream": True}
    assert all("token_ids" not in c["choices"][0] for c in events(await served.post(PLAIN, body)))
    chunks = events(await served.post(PLAIN, {**body, "return_token_ids": True}))
    ids = [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]]
    assert ids == small_tokenizer().encode_markup(f"{HELLO}<tool_call></tool_call>")


async def test_tokens_after_a_stop_string_are_not_returned(served: Served) -> None:
    served.engine.script = says("first;second", piece_len=12)
    body = {"model": "nano", "prompt": "a", "stop": ";", "return_token_ids": True}
    reply = (await served.post(PLAIN, body)).json()
    assert bytes(reply["choices"][0]["token_ids"]) == b"first;"
    assert reply["usage"]["completion_tokens"] == len("first;")


async def test_usage_reports_the_rounds_of_verify(served: Served) -> None:
    work = (await served.post(PLAIN, {"model": "nano", "prompt": "a"})).json()["usage"]["quicksilver"]
    assert work["rounds"] == work["forwards"] > 0


@pytest.mark.parametrize("prompt", ["", []])
async def test_an_empty_prompt_still_has_a_token(served: Served, prompt: object) -> None:
    assert (await served.post(PLAIN, {"model": "nano", "prompt": prompt})).status_code == 200
    assert len(served.engine.seen[0].prompt_ids) == 1


async def test_echo_puts_the_prompt_before_the_answer(served: Served) -> None:
    body = {"model": "nano", "prompt": "Say: ", "echo": True}
    assert (await served.post(PLAIN, body)).json()["choices"][0]["text"] == "Say: " + HELLO
    chunks = events(await served.post(PLAIN, {**body, "stream": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks) == "Say: " + HELLO


async def test_legacy_logprobs(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        logprobs = (TokenLogprob(111, -0.1, ((111, -0.1),)), TokenLogprob(107, -0.2, ((107, -0.2),)))
        return [Delta(request.id, (111, 107), logprobs, finish=FinishReason.STOP, usage=Usage(1, 0, 2))]

    served.engine.script = script
    body = {"model": "nano", "prompt": "a", "logprobs": 1}
    logprobs = (await served.post(PLAIN, body)).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["o", "k"],
        "token_logprobs": [-0.1, -0.2],
        "top_logprobs": [{"o": -0.1}, {"k": -0.2}],
        "text_offset": [0, 1],
    }
    assert (await served.post(PLAIN, {**body, "echo": True})).json()["error"]["param"] == "echo"
