"""Events of the engine as pieces, and an Answer after the last one."""

from __future__ import annotations

from quicksilver.core import Delta, FinishReason, Frame, Request, Usage
from quicksilver.llm.answers import AnswerCollector
from quicksilver.text.answer import AnswerReader, ReadOptions
from tests.support.small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode_markup(text))


def collector() -> AnswerCollector:
    return AnswerCollector(AnswerReader(Request("r", (1, 2)), ReadOptions(), TOKENIZER))


def test_pieces_have_the_new_text_of_each_channel() -> None:
    reading = collector()
    first = reading.read(Delta("r", ids("<think>why</think>Pa")))
    assert (first.reasoning, first.text) == ("why", "Pa")
    assert not reading.is_finished
    last = reading.read(Delta("r", ids("ris"), finish=FinishReason.STOP, usage=Usage(3, 1, 10)))
    assert last.text == "ris"
    assert reading.is_finished
    answer = reading.answer()
    assert (answer.text, answer.reasoning) == ("Paris", "why")
    assert answer.finish is FinishReason.STOP
    assert answer.usage == Usage(3, 1, 10)
    assert answer.token_ids == ids("<think>why</think>Paris")
    assert reading.num_tokens == len(answer.token_ids)


def test_a_frame_is_a_piece_without_text() -> None:
    reading = collector()
    reading.read(Delta("r", ids("a")))
    frame = Frame("r", 1, ids("bc"), (True, False), (0.9, 0.1))
    piece = reading.read(frame)
    assert (piece.frame, piece.text, piece.delta) == (frame, "", None)
