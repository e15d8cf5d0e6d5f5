"""Parts of chat replies: finish reasons, reasoning summaries, deltas of text and tool calls."""

from __future__ import annotations

import pytest

from quicksilver.core import FinishReason
from quicksilver.server.endpoints.chat.format import CallDeltas, finish_reason, message, summarise, text_deltas
from quicksilver.text.answer import CollectedAnswer, CollectedCall, Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta


@pytest.mark.parametrize(
    ("finished", "reason"),
    [
        (Finished(), "stop"),
        (Finished(num_calls=1), "tool_calls"),
        (Finished(FinishReason.LENGTH), "length"),
        (Finished(FinishReason.LENGTH, num_calls=1), "length"),
    ],
)
def test_finish_reasons(finished: Finished, reason: str) -> None:
    assert finish_reason(finished) == reason


def test_a_summary_is_cut_at_a_sentence() -> None:
    sentence = "This is a sentence of reasoning. "
    summary = summarise(sentence * 50, may_think=True)
    assert summary["status"] == "complete"
    assert summary["content"] is not None
    assert summary["content"].endswith("reasoning.")
    assert len(summary["content"]) <= 400
    assert summarise("", may_think=True)["status"] == "unavailable"
    assert summarise("", may_think=False)["status"] == "skipped"


def test_text_of_one_channel_shares_a_delta() -> None:
    content = [ChannelDelta(Channel.CONTENT, text) for text in "ab"]
    text = TextDelta((ChannelDelta(Channel.REASONING, "r"), *content))
    assert text_deltas(text, CallDeltas()) == [{"reasoning_content": "r"}, {"content": "ab"}]


def test_a_call_is_opened_once() -> None:
    calls = CallDeltas()
    opening = calls.delta(ChannelDelta(Channel.TOOL_CALL, '{"a"', 0, "f"))
    assert opening["function"] == {"name": "f", "arguments": '{"a"'}
    assert opening["id"].startswith("chatcmpl-tool-")
    assert calls.delta(ChannelDelta(Channel.TOOL_CALL, ": 1}", 0)) == {"index": 0, "function": {"arguments": ": 1}"}}
    assert calls.delta(ChannelDelta(Channel.TOOL_CALL, "{}", 1, "g"))["function"]["name"] == "g"


def test_a_message_that_only_calls_tools_has_no_content() -> None:
    called = message(CollectedAnswer(calls=[CollectedCall("f", "{}")]))
    assert (called["content"], called["tool_calls"][0]["function"]["name"]) == (None, "f")
    assert message(CollectedAnswer())["content"] == ""
    assert "reasoning_content" not in message(CollectedAnswer("text"))
