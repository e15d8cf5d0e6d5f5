"""`diffusing`: snapshots that replace each other, the last of which is the plain answer."""

from __future__ import annotations

import asyncio
from functools import partial
from math import log
from typing import Any

import pytest

from quicksilver.core import Delta, FinishReason, Frame, Request, TokenLogprob, Usage
from tests.server.conftest import HELLO, Served, chat, content_of, events, says
from tests.support.fake_engine import Script, Step, resolving
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"
TEXT = "Plain words, ünïcode 你好 and more."


def resolves(text: str) -> Script:
    return lambda request: resolving(request, small_tokenizer().encode_markup(text))


def snapshots(chunks: list[dict[str, Any]]) -> list[str]:
    deltas = [c["choices"][0]["delta"] for c in chunks]
    return [d["content"] for d in deltas if "content" in d and "role" not in d]


async def test_last_snapshot_is_byte_equal_to_the_plain_content(served: Served) -> None:
    served.engine.script = resolves(TEXT)
    plain = (await served.post(CHAT, chat(seed=1))).json()["choices"][0]["message"]["content"]
    shown = snapshots(events(await served.post(CHAT, chat(seed=1, stream=True, diffusing=True))))
    assert shown[-1] == plain == TEXT
    assert len(shown) > 5


async def test_every_snapshot_is_the_whole_answer_so_far(served: Served) -> None:
    served.engine.script = resolves(TEXT)
    shown = snapshots(events(await served.post(CHAT, chat(stream=True, diffusing=True))))
    assert all(TEXT.startswith(text.rstrip("�")) for text in shown)
    assert sorted(shown, key=len) == shown


async def test_frames_report_committed_decided_and_masked_positions(served: Served) -> None:
    served.engine.script = resolves("abcdefgh")
    chunks = events(await served.post(CHAT, chat(stream=True, diffusing=True)))
    frames = [c["quicksilver"] for c in chunks if "quicksilver" in c]
    assert frames[0] == {"step": 0, "committed": 0, "decided": 4, "masked": 4, "confidence": 0.6}
    assert frames[1]["masked"] == 0


async def test_token_detail_lists_every_canvas_position(served: Served) -> None:
    served.engine.script = resolves("abcdefgh")
    body = chat(stream=True, diffusing=True, diffusion_detail="tokens")
    frames = [c["quicksilver"] for c in events(await served.post(CHAT, body)) if "quicksilver" in c]
    assert frames[0]["tokens"][0] == ["a", "decided", 0.9]
    assert frames[0]["tokens"][7] == ["h", "masked", 0.3]


async def test_token_texts_join_to_the_snapshot(served: Served) -> None:
    served.engine.script = resolves(TEXT)
    chunks = events(await served.post(CHAT, chat(stream=True, diffusing=True, diffusion_detail="tokens")))
    settled = ""
    for chunk in (c for c in chunks if "quicksilver" in c):
        frame, content = chunk["quicksilver"], chunk["choices"][0]["delta"]["content"]
        settled += "".join(text for text, state, _ in frame["tokens"] if state in ("committed", "forced"))
        canvas = [text for text, state, _ in frame["tokens"] if state in ("decided", "masked")]
        assert settled + "".join(canvas[: frame["shown"]]) == content
        assert content[: frame["committed"]] == TEXT[: frame["committed"]]
    assert settled == TEXT


async def test_forced_tokens_and_alternatives_are_marked(served: Served) -> None:
    ids = tuple(small_tokenizer().encode("abcd"))
    likely = TokenLogprob(ids[0], log(0.75), ((ids[0], log(0.75)), (ids[3], log(0.25))))

    def script(request: Request) -> list[Step]:
        logprobs = (likely, TokenLogprob(ids[1], 0.0))
        return [
            Delta(request.id, ids[:2], logprobs, num_forced=1),
            Frame(request.id, 1, ids[2:3], (False,), (0.5,), (((ids[2], log(0.5)), (ids[3], log(0.25))),)),
            partial(asyncio.sleep, 0),
            Delta(request.id, ids[2:], num_forced=2, finish=FinishReason.STOP, usage=Usage(1, 0, 4, forwards=2)),
        ]

    served.engine.script = script
    body = chat(stream=True, diffusing=True, diffusion_detail="tokens", logprobs=True, top_logprobs=2)
    chunks = events(await served.post(CHAT, body))
    first, second, last = [c["quicksilver"] for c in chunks if "quicksilver" in c]
    assert first["tokens"] == [["a", "committed", 0.75, [["a", 0.75], ["d", 0.25]]], ["b", "forced", 1.0, []]]
    assert second["tokens"] == [["c", "masked", 0.5, [["c", 0.5], ["d", 0.25]]]]
    assert last == {
        **{"step": 2, "committed": 4, "decided": 0, "masked": 0, "confidence": 1.0, "shown": 0},
        "tokens": [["c", "forced", None], ["d", "forced", None]],
    }


async def test_snapshots_are_limited_in_time_but_the_last_one_always_comes(served: Served) -> None:
    served.configure(frames_per_s=1e-6)
    served.engine.script = resolves(TEXT)
    shown = snapshots(events(await served.post(CHAT, chat(stream=True, diffusing=True))))
    assert shown[-1] == TEXT
    assert len(shown) == 2


async def test_without_stream_diffusing_is_ignored(served: Served) -> None:
    reply = (await served.post(CHAT, chat(diffusing=True))).json()
    assert reply["choices"][0]["message"]["content"] == HELLO
    assert not served.engine.seen[0].wants_frames


async def test_reasoning_stays_append_only_and_is_not_shown_as_content(served: Served) -> None:
    served.engine.script = resolves("thinking it over</think>The answer.")
    body = chat(stream=True, diffusing=True, reasoning_effort="low")
    chunks = events(await served.post(CHAT, body))
    reasoning = "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks)
    assert reasoning == "thinking it over"
    assert snapshots(chunks)[-1] == "The answer."
    assert all("thinking" not in text for text in snapshots(chunks))


async def test_draft_tokens_are_not_charged(served: Served) -> None:
    served.engine.script = resolves(TEXT)
    body = chat(stream=True, diffusing=True, stream_options={"include_usage": True})
    usage = events(await served.post(CHAT, body))[-1]["usage"]
    assert usage["completion_tokens"] == len(TEXT.encode())


@pytest.mark.parametrize("special", ["<|im_end|>", "<|mask|>", "<tool_call>"])
async def test_a_snapshot_ends_before_a_special_token_on_the_canvas(served: Served, special: str) -> None:
    ids = tuple(small_tokenizer().encode_markup(f"ab{special}cd"))

    def script(request: Request) -> list[Step]:
        frame = Frame(request.id, 0, ids, (True,) * len(ids), (0.9,) * len(ids))
        return [frame, Delta(request.id, ids[:2], finish=FinishReason.STOP, usage=Usage(1, 0, 2))]

    served.engine.script = script
    chunks = events(await served.post(CHAT, chat(stream=True, diffusing=True)))
    assert snapshots(chunks) == ["ab"]


async def test_a_plain_stream_of_an_engine_that_sends_frames_shows_none(served: Served) -> None:
    served.engine.script = resolves(TEXT)
    chunks = events(await served.post(CHAT, chat(stream=True)))
    assert content_of(chunks) == TEXT
    assert all("quicksilver" not in c for c in chunks)


async def test_the_last_snapshot_drops_a_draft_that_a_stop_string_cuts(served: Served) -> None:
    served.engine.script = resolves("one STOP two")
    chunks = events(await served.post(CHAT, chat(stream=True, diffusing=True, stop="STOP")))
    assert snapshots(chunks)[-1] == "one "


async def test_an_empty_answer_has_no_snapshot(served: Served) -> None:
    served.engine.script = says("")
    chunks = events(await served.post(CHAT, chat(stream=True, diffusing=True)))
    assert snapshots(chunks) == []
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
