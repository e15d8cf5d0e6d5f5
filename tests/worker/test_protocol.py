"""Messages on the worker's socket: what is sent arrives as it was, and other bytes end the connection."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quicksilver.adapters import AdapterRef, stacked
from quicksilver.core import Delta, EngineStats, Frame, Request, ScoreRequest, Scores, TokenLogprob, Usage
from quicksilver.errors import ContextTooLong, EngineOverloaded, EngineUnavailable, QuicksilverError, RowFailed
from quicksilver.worker import protocol
from tests.support.tiny import decode_params

COMMANDS = [
    protocol.Submit(Request("a", (1, 2), decode_params("edit", logit_bias={3: 0.5}), tenant="t")),
    protocol.Score(ScoreRequest("s", (1,), ((2, 3), (4,)))),
    protocol.Score(ScoreRequest("s", (1,), ((2,),), adapter=stacked(AdapterRef("a", "/a"), AdapterRef("b", "/b")))),
    protocol.Abort("a"),
    protocol.AskStats("ticket"),
]
REPLIES = [
    protocol.Heartbeat(EngineStats(running=2, steps=9), 0.25),
    protocol.GotEvents(
        [Delta("a", (1, 2), (TokenLogprob(1, -0.5, ((1, -0.5),)),), usage=Usage(3, rows=7)), Delta("b", (3,))],
        [Frame("a", 1, (5,), (True,), (0.5,))],
    ),
    protocol.GotScores("s", Scores(((-1.0, -2.0), (-3.0,)), Usage(1, completion_tokens=3, rows=4))),
    protocol.GotStats("ticket", EngineStats(waiting=1)),
    protocol.Refused("a", "ContextTooLong", "too long", "messages", "context_length_exceeded"),
]


def read(data: bytes) -> bytes | None:
    async def once() -> bytes | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await protocol.read_body(reader)

    return asyncio.run(once())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda message: type(message).__name__)
def test_commands_arrive_as_they_were_sent(command: protocol.Command) -> None:
    body = read(protocol.pack(command))
    assert body is not None
    assert protocol.command_decoder.decode(body) == command


@pytest.mark.parametrize("reply", REPLIES, ids=lambda message: type(message).__name__)
def test_replies_arrive_as_they_were_sent(reply: protocol.Reply) -> None:
    body = read(protocol.pack(reply))
    assert body is not None
    assert protocol.reply_decoder.decode(body) == reply


def test_a_cut_or_oversized_message_reads_as_the_end() -> None:
    assert read(b"") is None
    assert read(protocol.pack(COMMANDS[0])[:-1]) is None
    assert read((protocol.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little")) is None


def test_a_reply_is_no_command() -> None:
    body = read(protocol.pack(REPLIES[0]))
    assert body is not None
    with pytest.raises(msgspec.MsgspecError):
        protocol.command_decoder.decode(body)


@pytest.mark.parametrize("error", [ContextTooLong("long", param="messages"), EngineUnavailable("full")])
def test_errors_keep_their_class_code_and_field(error: QuicksilverError) -> None:
    found = protocol.to_error(protocol.refuse("a", error))
    assert type(found) is type(error)
    assert (found.message, found.param, found.code, found.status) == (
        error.message,
        error.param,
        error.code,
        error.status,
    )


def test_foreign_errors_do_not_carry_their_text() -> None:
    """An exception of a library may quote a prompt."""
    found = protocol.to_error(protocol.refuse("a", ValueError("secret text")))
    assert isinstance(found, RowFailed)
    assert "secret" not in found.message


def test_only_error_classes_are_built_from_a_name() -> None:
    assert type(protocol.to_error(protocol.Refused("a", "annotations", "x", None, "c"))) is QuicksilverError


def test_the_time_to_wait_of_a_refusal_arrives() -> None:
    found = protocol.to_error(protocol.refuse("a", EngineOverloaded("full", retry_after_s=17.0)))
    assert isinstance(found, EngineOverloaded)
    assert found.retry_after_s == 17.0
