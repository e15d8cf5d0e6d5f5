"""/v1/apply/completions: what the update does not touch is copied byte for byte."""

from __future__ import annotations

import pytest

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
    served.engine.script = says(f"```python\n{ORIGINAL}x = compute()\n```")
    reply = (await served.post(APPLY, apply(ORIGINAL, UNCLEAR))).json()
    assert len(served.engine.seen) == 1
    assert "x = compute()" in reply["choices"][0]["message"]["content"]
    assert "```" not in reply["choices"][0]["message"]["content"]
    assert reply["usage"]["completion_tokens"] > 0
    streamed = content_of(events(await served.post(APPLY, apply(ORIGINAL, UNCLEAR, stream=True))))
    assert streamed == reply["choices"][0]["message"]["content"]


async def test_a_rewrite_that_loses_code_is_not_used_and_a_warning_names_that(served: Served) -> None:
    served.engine.script = says("def a():\n    return 1\n")
    reply = (await served.post(APPLY, apply(ORIGINAL, UNCLEAR))).json()
    assert reply["choices"][0]["message"]["content"].strip() == ORIGINAL.strip()
    assert "not applied" in reply["warning"]
    chunks = events(await served.post(APPLY, apply(ORIGINAL, UNCLEAR, stream=True)))
    assert content_of(chunks).strip() == ORIGINAL.strip()
    assert "not applied" in chunks[-1]["warning"]


async def test_a_cut_rewrite_keeps_the_original_and_finishes_with_length(served: Served) -> None:
    served.engine.script = lambda r: spoken(r, small_tokenizer().encode("x = com"), finish=FinishReason.LENGTH)
    reply = (await served.post(APPLY, apply(ORIGINAL, UNCLEAR))).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"].strip() == ORIGINAL.strip()


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ("Merge these files", "original_code"),
        ("<code>a</code><update>b</update>", "original_code"),
        ("<|original_code|>a<|/original_code|>", "update_snippet"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_without_both_sections_is_refused(
    served: Served, content: str, missing: str, stream: bool
) -> None:
    """An editor writes the answer into a file, so the endpoint never answers as a chat."""
    body = {"model": "nano", "messages": [{"role": "user", "content": content}], "stream": stream}
    reply = await served.post(APPLY, body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")
    assert f"<|{missing}|>" in reply.json()["error"]["message"]
    assert served.engine.seen == []
