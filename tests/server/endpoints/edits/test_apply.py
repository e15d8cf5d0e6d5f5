"""/v1/apply/completions: what the update does not touch is copied byte for byte."""

from __future__ import annotations

from quicksilver.core import FinishReason
from tests.server.conftest import Served, content_of, events, says
from tests.support.fake_engine import spoken
from tests.support.small_tokenizer import small_tokenizer

APPLY = "/v1/apply/completions"
ORIGINAL = "import os\n\ndef a():\n    return 1\n\ndef b():\n    return 2\n"
UPDATE = "# ... existing code ...\n\ndef a():\n    return 100\n\n# ... existing code ..."
MERGED = ORIGINAL.replace("return 1\n", "return 100\n")
UNCLEAR = "x = compute()\nif x:\n    launch(x)"


def apply(original: str, update: str, **fields: object) -> dict[str, object]:
    prompt = f"<|original_code|>\n{original}\n<|/original_code|>\n\n<|update_snippet|>\n{update}\n<|/update_snippet|>"
    return {"model": "mercury-edit", "messages": [{"role": "user", "content": prompt}], **fields}


async def test_a_certain_merge_needs_no_model(served: Served) -> None:
    reply = (await served.post(APPLY, apply(ORIGINAL, UPDATE))).json()
    assert reply["choices"][0]["message"]["content"] == MERGED
    assert reply["usage"]["total_tokens"] == 0
    assert served.engine.seen == []


async def test_a_certain_merge_streams_too(served: Served) -> None:
    chunks = events(await served.post(APPLY, apply(ORIGINAL, UPDATE, stream=True)))
    assert content_of(chunks) == MERGED
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_an_ambiguous_span_is_rewritten_by_the_model(served: Served) -> None:
    served.engine.script = says("```python\nx = compute()\n```")
    reply = (await served.post(APPLY, apply(ORIGINAL, UNCLEAR))).json()
    assert len(served.engine.seen) == 1
    assert "x = compute()" in reply["choices"][0]["message"]["content"]
    assert "```" not in reply["choices"][0]["message"]["content"]
    assert reply["usage"]["completion_tokens"] > 0
    streamed = content_of(events(await served.post(APPLY, apply(ORIGINAL, UNCLEAR, stream=True))))
    assert streamed == reply["choices"][0]["message"]["content"]


async def test_a_cut_rewrite_keeps_the_original_and_finishes_with_length(served: Served) -> None:
    served.engine.script = lambda r: spoken(r, small_tokenizer().encode("x = com"), finish=FinishReason.LENGTH)
    reply = (await served.post(APPLY, apply(ORIGINAL, UNCLEAR))).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"].strip() == ORIGINAL.strip()


async def test_a_prompt_without_tags_is_a_plain_instruction(served: Served) -> None:
    served.engine.script = says("merged by hand")
    body = {"model": "mercury-coder", "messages": [{"role": "user", "content": "Merge these files"}], "stream": True}
    assert content_of(events(await served.post(APPLY, body))) == "merged by hand"
    assert b"Merge these files" in bytes(i for i in served.engine.seen[0].prompt_ids if i < 256)
