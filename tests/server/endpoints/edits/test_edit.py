"""/v1/edit/completions: the reply that every editor parses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.core import Delta, FinishReason, Request, TokenLogprob
from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from tests.server.conftest import Served, events, says
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

EDIT = "/v1/edit/completions"
PROMPT = """<|recently_viewed_code_snippets|>
<|/recently_viewed_code_snippets|>

<|current_file_content|>
current_file_path: greet.js
<|code_to_edit|>
function greet(name) {
  return "hello"<|cursor|>;
}
<|/code_to_edit|>
<|/current_file_content|>

<|edit_diff_history|>
<|/edit_diff_history|>
"""
REGION = 'function greet(name) {\n  return "hello";\n}'
REWRITTEN = 'function greet(name) {\n  return "hello " + name;\n}'


def edit(**fields: object) -> dict[str, object]:
    return {"model": "mercury-edit", "messages": [{"role": "user", "content": PROMPT}], **fields}


async def test_the_reply_is_the_rewritten_region_in_a_bare_fence(served: Served) -> None:
    served.engine.script = says(REWRITTEN + "\n```\nThat adds the name.")
    reply = (await served.post(EDIT, edit(stream=False))).json()
    assert reply["choices"][0]["message"]["content"] == f"```\n{REWRITTEN}\n```"
    assert reply["choices"][0]["message"]["tool_calls"] == []
    assert (reply["object"], reply["model"], reply["warning"]) == ("chat.completion", "mercury-edit", None)


async def test_a_region_with_fences_is_not_cut_at_the_first_one(served: Served) -> None:
    region = "# Use\n\n```sh\nls\n```\n\nMore text."
    prompt = PROMPT.replace(REGION.replace('"hello"', '"hello"<|cursor|>'), region)
    served.engine.script = says(region.replace("ls", "pwd") + "\n````")
    reply = (await served.post(EDIT, {**edit(), "messages": [{"role": "user", "content": prompt}]})).json()
    assert reply["choices"][0]["message"]["content"] == f"```\n{region.replace('ls', 'pwd')}\n```"


async def test_the_cursor_tag_is_never_echoed(served: Served) -> None:
    served.engine.script = says('function greet(name) {\n  return "hello"<|cursor|>;\n}\n```')
    reply = (await served.post(EDIT, edit())).json()
    assert reply["choices"][0]["message"]["content"] == f"```\n{REGION}\n```"


@pytest.mark.parametrize("nothing", ["", "None", "\n"])
async def test_nothing_to_change_echoes_the_region(served: Served, nothing: str) -> None:
    served.engine.script = says(nothing)
    reply = (await served.post(EDIT, edit())).json()
    assert reply["choices"][0]["message"]["content"] == f"```\n{REGION}\n```"


async def test_an_edit_that_was_cut_off_is_not_offered(served: Served) -> None:
    served.engine.script = lambda r: spoken(r, small_tokenizer().encode(REWRITTEN[:20]), finish=FinishReason.LENGTH)
    reply = (await served.post(EDIT, edit())).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"] == f"```\n{REGION}\n```"


async def test_a_streamed_edit_comes_whole(served: Served) -> None:
    served.engine.script = says(REWRITTEN + "\n```", piece_len=2)
    chunks = events(await served.post(EDIT, edit(stream=True, stream_options={"include_usage": True})))
    contents = [c["choices"][0]["delta"].get("content") for c in chunks if c["choices"]]
    assert contents == ["", f"```\n{REWRITTEN}\n```", None]
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_worked_examples_are_dropped_if_the_context_is_short(served: Served) -> None:
    long = PROMPT.replace("function greet", "// " + "long " * 150 + "\nfunction greet")
    for text in (PROMPT, long):
        body = edit(messages=[{"role": "user", "content": text}])
        assert (await served.post(EDIT, body)).status_code == 200
    first, second = (small_tokenizer().decode(request.prompt_ids) for request in served.engine.seen)
    assert "tax_rate" in first
    assert "tax_rate" not in second
    assert "long long" in second


async def test_limits_and_defaults(served: Served) -> None:
    await served.post(EDIT, edit())
    await served.post(EDIT, edit(max_tokens=33, temperature=0.5, presence_penalty=1.0))
    first, second = (request.params for request in served.engine.seen)
    assert (first.max_new_tokens, first.temperature) == (1024, 0)
    assert (second.max_new_tokens, second.temperature, second.presence_penalty) == (33, 0.5, 1.0)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": PROMPT}],
        [{"role": "user", "content": PROMPT}, {"role": "user", "content": PROMPT}],
        [{"role": "user", "content": "no region here"}],
        [],
    ],
)
async def test_anything_but_one_user_message_with_a_region_is_refused(served: Served, messages: list[object]) -> None:
    response = await served.post(EDIT, edit(messages=messages))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


async def test_part_content_is_read_as_text(served: Served) -> None:
    parts = [{"type": "text", "text": PROMPT[:50]}, {"type": "text", "text": PROMPT[50:]}]
    assert (await served.post(EDIT, edit(messages=[{"role": "user", "content": parts}]))).status_code == 200


def unlikely(request: Request) -> list[Step]:
    """The rewritten region with a log-probability of -3: -2 for its tokens and -1 for the token that ends it."""
    ids = small_tokenizer().encode(REWRITTEN)
    (delta,) = spoken(request, ids, piece_len=len(ids))
    assert isinstance(delta, Delta)
    assert request.params.logprobs == 0
    logprobs = [TokenLogprob(i, -2 / len(ids)) for i in ids]
    return [replace(delta, logprobs=(*logprobs, TokenLogprob(0, -1.0)))]


@pytest.mark.parametrize(
    ("default", "min_logprob", "is_shown"),
    [(None, -3.1, True), (None, -2.5, False), (-3.1, None, True), (-2.5, None, False), (-2.5, -3.1, True)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_edit_that_is_too_unlikely_is_not_offered(
    served: Served, default: float | None, min_logprob: float | None, is_shown: bool, stream: bool
) -> None:
    served.configure(edit_min_logprob=default)
    served.engine.script = unlikely
    response = await served.post(EDIT, edit(min_logprob=min_logprob, stream=stream))
    replies = events(response) if stream else [response.json()]
    choices = [choice for reply in replies for choice in reply["choices"]]
    content = "".join(choice.get("delta", choice.get("message", {})).get("content") or "" for choice in choices)
    assert content == f"```\n{REWRITTEN if is_shown else REGION}\n```"


def test_the_default_of_the_server_is_at_most_zero() -> None:
    with pytest.raises(InvalidRequest, match="edit_min_logprob"):
        ServerConfig(edit_min_logprob=0.5)


async def test_a_least_log_probability_is_at_most_zero(served: Served) -> None:
    response = await served.post(EDIT, edit(min_logprob=0.5))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "min_logprob")
