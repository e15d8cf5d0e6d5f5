"""Content blocks and stop reasons."""

from __future__ import annotations

import pytest

from quicksilver.core import FinishReason
from quicksilver.server.endpoints.messages.format import OpenBlock, read_input, stop_reason
from quicksilver.text.answer import Finished
from quicksilver.text.channels import Channel


@pytest.mark.parametrize(
    ("finished", "reason"),
    [
        (Finished(), "end_turn"),
        (Finished(num_calls=1), "tool_use"),
        (Finished(stop="END"), "stop_sequence"),
        (Finished(FinishReason.LENGTH, num_calls=1), "max_tokens"),
    ],
)
def test_stop_reason(finished: Finished, reason: str) -> None:
    assert stop_reason(finished) == reason


def test_arguments_that_were_cut_off_are_empty() -> None:
    assert read_input('{"a": 1}') == {"a": 1}
    assert read_input('{"a": ') == read_input("") == read_input("[1]") == {}


def test_blocks_have_the_type_of_their_channel() -> None:
    kinds = {channel: OpenBlock(channel, name="f", text="{}").reply("s") for channel in Channel}
    assert kinds[Channel.REASONING] == {"type": "thinking", "thinking": "{}", "signature": "s"}
    assert kinds[Channel.CONTENT] == {"type": "text", "text": "{}"}
    call = kinds[Channel.TOOL_CALL]
    assert (call["type"], call["name"], call["input"], call["id"][:6]) == ("tool_use", "f", {}, "toolu_")
