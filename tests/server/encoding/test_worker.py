"""The program of an encoder process, called in this process over in-memory streams."""

from __future__ import annotations

import io

import msgspec
import pytest

from quicksilver.constrain.compile import frames
from quicksilver.constrain.compile.frames import HEADER
from quicksilver.errors import InvalidRequest
from quicksilver.server.encoding import worker
from quicksilver.server.encoding.prompt_encoder import EncodeTexts, RenderChat
from quicksilver.server.encoding.worker import Reply, Setup, reply_to, serve
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest
from tests.support.small_tokenizer import small_tokenizer

JOB = EncodeTexts(("ab",))


def framed(*bodies: bytes) -> io.BytesIO:
    return io.BytesIO(b"".join(HEADER.pack(len(body)) + body for body in bodies))


def read_frames(stream: io.BytesIO) -> list[bytes]:
    stream.seek(0)
    found = []
    while header := stream.read(HEADER.size):
        found.append(stream.read(*HEADER.unpack(header)))
    return found


def test_a_tokenizer_and_a_template_are_rebuilt_from_data() -> None:
    tokenizer = small_tokenizer()
    request = PromptRequest((Message("user", "hi"),))
    templates = [ChatTemplate.own(tokenizer, "Be brief."), ChatTemplate.from_source(tokenizer, "{{ messages|length }}")]
    for template in templates:
        sent = msgspec.msgpack.encode(Setup.of(tokenizer, template))
        built_tokenizer, built = msgspec.msgpack.decode(sent, type=Setup).build()
        assert built.write(request).ids == template.write(request).ids
        assert built_tokenizer.roles == tokenizer.roles


def test_every_job_gets_a_reply_after_an_empty_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(worker, "limit_memory", limits.append)
    monkeypatch.setattr(frames.signal, "setitimer", lambda *_: None)
    tokenizer = small_tokenizer()
    setup = msgspec.msgpack.encode(Setup.of(tokenizer, ChatTemplate.own(tokenizer)))
    replies = io.BytesIO()
    serve(framed(setup, msgspec.msgpack.encode(JOB), b""), replies, 123, 1.0)
    ready, reply, heartbeat = read_frames(replies)
    assert (ready, heartbeat, limits) == (b"", b"", [123])
    encoded = msgspec.msgpack.decode(reply, type=Reply).result
    assert encoded is not None
    assert encoded.ids == (tuple(tokenizer.encode("ab")),)


def test_a_refusal_keeps_its_message_and_its_place() -> None:
    tokenizer = small_tokenizer()
    template = ChatTemplate.from_source(tokenizer, "{{ raise_exception('no system message') }}")
    job = msgspec.msgpack.encode(RenderChat(PromptRequest((Message("user", "hi"),))))
    refusal = reply_to(job, tokenizer, template).refusal
    assert refusal is not None
    assert "no system message" in refusal.message
    assert refusal.code == InvalidRequest.code


@pytest.mark.parametrize("error", [MemoryError(), RecursionError()])
def test_too_much_memory_is_a_refusal(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "perform", fail)
    tokenizer = small_tokenizer()
    refusal = reply_to(msgspec.msgpack.encode(JOB), tokenizer, ChatTemplate.own(tokenizer)).refusal
    assert refusal is not None
    assert "memory" in refusal.message


def test_the_message_of_an_unexpected_exception_is_not_sent() -> None:
    tokenizer = small_tokenizer()
    assert reply_to(b"secret", tokenizer, ChatTemplate.own(tokenizer)) == Reply(failure="ValidationError")
