"""/v1/fim/completions and /v1/completions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request, TokenLogprob, Usage
from tests.server.conftest import HELLO, Served, chat, events, says
from tests.support.fake_engine import Step
from tests.support.small_tokenizer import SPECIALS, small_tokenizer

FIM, PLAIN = "/v1/fim/completions", "/v1/completions"
KEYS = {"id", "object", "created", "model", "choices", "usage", "warning"}


def decoded(request: Request) -> str:
    return "".join(map(small_tokenizer().token_text, request.prompt_ids))


@pytest.mark.parametrize("tag", ["<|fim_{}|>", "<fim_{}>"])
async def test_fim_tags_in_a_prompt_are_read_as_prefix_and_suffix(served: Served, tag: str) -> None:
    prefix, suffix, middle = (tag.format(name) for name in ("prefix", "suffix", "middle"))
    tagged = {"model": "nano", "prompt": f"{prefix}def f(\n{suffix}):\n<|im_end|>{middle}"}
    assert (await served.post(PLAIN, tagged)).status_code == 200
    plain = {"model": "nano", "prompt": "def f(\n", "suffix": "):\n<|im_end|>"}
    assert (await served.post(PLAIN, plain)).status_code == 200
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids


async def test_other_prompts_with_fim_tags_stay_text(served: Served) -> None:
    for prompt in ("<|fim_prefix|>a<|fim_middle|>", "a<|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>"):
        assert (await served.post(PLAIN, {"model": "nano", "prompt": prompt})).status_code == 200
        assert decoded(served.engine.seen[-1]) == prompt


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


async def test_ignore_eos_and_min_tokens(served: Served) -> None:
    def stop_ids(index: int) -> tuple[int, ...]:
        return served.engine.seen[index].params.stop_ids

    await served.post("/v1/completions", {"prompt": "x", "ignore_eos": True})
    await served.post("/v1/completions", {"prompt": "x", "min_tokens": 3, "stop_token_ids": [7]})
    await served.post("/v1/chat/completions", chat(ignore_eos=True))
    await served.post("/v1/chat/completions", chat(min_tokens=3))
    eos_ids = small_tokenizer().eos_ids
    assert [stop_ids(i) for i in range(4)] == [(), (*eos_ids, 7), (), eos_ids]
    constraints = [request.constraint for request in served.engine.seen]
    assert constraints[0] is constraints[2] is None
    assert constraints[1] == ConstraintSpec(min_tokens=3, end_ids=(*eos_ids, 7))
    assert constraints[3] == ConstraintSpec(min_tokens=3, end_ids=eos_ids)


@pytest.mark.parametrize("name", ["ignore_eos", "min_tokens"])
async def test_lengths_and_grammars_exclude_each_other(served: Served, name: str) -> None:
    body = chat(response_format={"type": "json_object"}, **{name: 1 if name == "min_tokens" else True})
    refused = await served.post("/v1/chat/completions", body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name


async def test_every_chunk_may_carry_the_usage(served: Served) -> None:
    served.engine.script = says("Hello there, world", piece_len=1)
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", chat())):
        chunks = events(await served.post(path, {**body, "stream": True, "stream_options": options}))
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == chunks[-1]["usage"]["total_tokens"] - chunks[-1]["usage"]["prompt_tokens"] > 2
        assert len(set(counts)) > 2
        assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)


async def test_best_of_returns_the_likeliest_answers_in_order(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        token = 70 + request.params.seed
        logprob = {70: -0.5, 71: -0.1, 72: -0.9, 73: -0.2}[token]
        usage = Usage(1, 0, 1)
        return [Delta(request.id, (token,), (TokenLogprob(token, logprob),), finish=FinishReason.STOP, usage=usage)]

    served.engine.script = script
    reply = (await served.post("/v1/completions", {"prompt": "x", "n": 2, "best_of": 4, "seed": 0})).json()
    text = small_tokenizer().token_text
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(0, text(71)), (1, text(73))]
    assert [choice["logprobs"] for choice in reply["choices"]] == [None, None]
    assert reply["usage"]["completion_tokens"] == 4
    assert (await served.post("/v1/completions", {"prompt": "x", "best_of": 0, "seed": 0})).status_code == 200
    refused = await served.post("/v1/completions", {"prompt": "x", "best_of": 2, "stream": True})
    assert refused.json()["error"]["param"] == "best_of"


async def test_the_prediction_reaches_the_engine_and_its_counts_the_usage(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        usage = Usage(1, 0, 1, prediction_tokens=len(request.prediction), predicted=2)
        return [Delta(request.id, (70,), finish=FinishReason.STOP, usage=usage)]

    served.engine.script = script
    expected = small_tokenizer().encode("Hello world")
    for content in ("Hello world", [{"type": "text", "text": "Hello "}, {"type": "text", "text": "world"}]):
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", chat())):
            sent = {**body, "prediction": {"type": "content", "content": content}}
            details = (await served.post(path, sent)).json()["usage"]["completion_tokens_details"]
            assert served.engine.seen[-1].prediction == tuple(expected)
            assert details["accepted_prediction_tokens"] == 2
            assert details["rejected_prediction_tokens"] == len(expected) - 2


async def test_counts_of_drafts_in_vllm_form(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        usage = Usage(1, 0, 9, 6, drafted=12, accepted=6, rounds=4, acceptance=(1, 0, 3))
        return [Delta(request.id, (70,), finish=FinishReason.STOP, usage=usage)]

    served.engine.script = script
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", chat())):
        whole = (await served.post(path, body)).json()["metrics"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        assert events(await served.post(path, {**body, **options}))[-1]["metrics"] == whole
        assert whole["speculative_decoding"] == {
            "acceptance_histogram": [1, 0, 3],
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.5,
            "num_accepted_draft_tokens": 6,
            "num_draft_tokens": 12,
            "num_spec_steps": 4,
            "num_spec_tokens": 2,
        }


async def test_an_empty_answer_is_as_likely_as_its_end(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        end = TokenLogprob(request.params.stop_ids[0], -4.0 if request.params.seed == 0 else -0.2)
        ids = () if request.params.seed == 0 else (70,)
        logprobs = (*(TokenLogprob(token, -0.1) for token in ids), end)
        return [Delta(request.id, ids, logprobs, finish=FinishReason.STOP, usage=Usage(1, 0, len(ids)))]

    served.engine.script = script
    reply = (await served.post("/v1/completions", {"prompt": "x", "best_of": 2, "seed": 0})).json()
    assert [choice["text"] for choice in reply["choices"]] == [small_tokenizer().token_text(70)]


async def test_a_limit_that_was_lowered_for_any_prompt_is_reported(served: Served) -> None:
    body = {"prompt": ["x", "x" * 4000], "max_tokens": 1000}
    warning = (await served.post("/v1/completions", body)).json()["warning"]
    assert warning is not None
    assert "max_tokens was lowered to 96" in warning
