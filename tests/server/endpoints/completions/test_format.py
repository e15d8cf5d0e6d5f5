"""Chunks of one text completion: prefixes, offsets of log-probabilities, token ids."""

from __future__ import annotations

from typing import Any

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.endpoints.completions.format import Detail, LegacyLogprobs, TextChunks, TextStream
from quicksilver.server.generation.plan import plan_reply
from quicksilver.text.answer import Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta
from tests.support.small_tokenizer import small_tokenizer


def make_stream(detail: Detail, prefix: str = "") -> TextStream:
    return TextStream(0, TextChunks(plan_reply("cmpl", "nano", []), "fp", has_usage=False), detail, prefix)


def text(content: str, **fields: Any) -> TextDelta:
    return TextDelta((ChannelDelta(Channel.CONTENT, content),) if content else (), **fields)


def choices(stream: TextStream, *pieces: TextDelta | Finished) -> list[dict[str, Any]]:
    return [dict(chunk["choices"][0]) for piece in pieces for chunk in stream.chunks(piece)]


def test_a_prefix_is_sent_once() -> None:
    stream = make_stream(Detail(), "prompt ")
    assert [c["text"] for c in choices(stream, text("a"), text("b"), Finished())] == ["prompt a", "b", ""]
    assert [c["text"] for c in choices(make_stream(Detail(), "prompt "), Finished())] == ["prompt "]


def test_a_cut_answer_finishes_with_length() -> None:
    assert choices(make_stream(Detail()), Finished(FinishReason.LENGTH))[0]["finish_reason"] == "length"


def test_tokens_without_text_are_sent_with_the_next_text() -> None:
    stream = make_stream(Detail(has_token_ids=True))
    sent = choices(stream, text("", token_ids=(1,)), text("a", token_ids=(2,)), text("", token_ids=(3,)), Finished())
    assert [c["token_ids"] for c in sent] == [[1, 2], [3]]


def test_offsets_continue_over_chunks() -> None:
    logprobs = LegacyLogprobs(small_tokenizer(), 5)
    first = logprobs.reply([TokenLogprob(97, -0.5), TokenLogprob(98, float("-inf"), ((97, -1.0),))])
    assert (first["tokens"], first["text_offset"]) == (["a", "b"], [0, 1])
    assert first["token_logprobs"] == [-0.5, -9999.0]
    assert logprobs.reply([TokenLogprob(99, 0.0)])["text_offset"] == [2]


def test_offsets_are_those_of_the_text() -> None:
    tokenizer = small_tokenizer()
    ids = [*tokenizer.encode("a👋b"), tokenizer.eos_ids[0], *tokenizer.encode("c")]
    reply = LegacyLogprobs(tokenizer, 0).reply([TokenLogprob(i, 0.0) for i in ids])
    # The first character of four bytes begins at 1, and its bytes are four tokens; the special token has no text.
    assert reply["text_offset"] == [0, 1, 1, 1, 1, 2, 3, 3]
    assert tokenizer.decode(ids)[reply["text_offset"][-1]] == "c"
