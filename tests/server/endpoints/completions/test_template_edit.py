"""Prompts in the templates of code models: answered as the real infill or edit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.core import FinishReason, Request, TokenLogprob
from tests.editing.test_templates import FIM, PREFIX, SUFFIX, SWEEP, ZETA
from tests.server.conftest import Served, chat, events, says
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

PATH = "/v1/completions"
REGION = "def total(tax_rate):\n    return 1 + tax"
REWRITTEN = "def total(tax_rate):\n    return 1 + tax_rate"


@pytest.mark.parametrize("name", FIM)
async def test_an_infill_equals_the_one_of_its_parts(served: Served, name: str) -> None:
    plain = (await served.post("/v1/fim/completions", {"prompt": PREFIX, "suffix": SUFFIX, "seed": 1})).json()
    templated = (await served.post(PATH, {"prompt": FIM[name].format(p=PREFIX, s=SUFFIX), "seed": 1})).json()
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids
    assert served.engine.seen[0].params == served.engine.seen[1].params
    assert templated["choices"][0]["text"] == plain["choices"][0]["text"]


async def test_a_template_can_be_read_as_text(served: Served) -> None:
    prompt = FIM["qwen"].format(p=PREFIX, s=SUFFIX)
    await served.post(PATH, {"prompt": prompt, "template": "off"})
    await served.post("/v1/chat/completions", chat(prompt))
    special = set(small_tokenizer().special_tokens.values())
    for request in served.engine.seen:
        assert prompt in small_tokenizer().decode(request.prompt_ids)
    assert not special & set(served.engine.seen[0].prompt_ids)


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        (ZETA, f"<|editable_region_start|>\n{REWRITTEN}\n<|editable_region_end|>"),
        (SWEEP, f"{REWRITTEN}\n"),
    ],
    ids=["zeta", "sweep"],
)
async def test_an_edit_is_answered_in_the_form_of_its_template(served: Served, prompt: str, reply: str) -> None:
    served.engine.script = says(REWRITTEN)
    whole = (await served.post(PATH, {"prompt": prompt, "max_tokens": 200, "stop": ["\n\n"]})).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == reply
    chunks = events(await served.post(PATH, {"prompt": prompt, "max_tokens": 200, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == reply
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_an_edit_that_was_cut_off_leaves_the_region_unchanged(served: Served) -> None:
    def cut(request: Request) -> list[Step]:
        return spoken(request, small_tokenizer().encode("def to"), finish=FinishReason.LENGTH)

    served.engine.script = cut
    choice = (await served.post(PATH, {"prompt": SWEEP})).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (f"{REGION}\n", "length")


async def test_an_edit_below_the_log_probability_of_the_server_leaves_the_region_unchanged(served: Served) -> None:
    def unlikely(request: Request) -> list[Step]:
        ids = small_tokenizer().encode(REWRITTEN)
        (delta,) = spoken(request, ids, piece_len=len(ids))
        return [replace(delta, logprobs=tuple(TokenLogprob(i, -3 / len(ids)) for i in ids))]  # type: ignore[type-var]

    served.engine.script = unlikely
    for least, text in ((-3.1, REWRITTEN), (-2.5, REGION)):
        served.configure(edit_min_logprob=least)
        assert (await served.post(PATH, {"prompt": SWEEP})).json()["choices"][0]["text"] == f"{text}\n"
