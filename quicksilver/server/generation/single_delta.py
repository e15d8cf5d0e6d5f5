"""A reply that is only right as a whole, sent as a stream: opening, one delta, closing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quicksilver.server.endpoints.chat.format import Chunks, finish_word
from quicksilver.server.endpoints.chat.wire import ChatChunk
from quicksilver.server.generation.answer import Ended, Piece
from quicksilver.server.generation.collect import Whole


class WholeTeller:
    """Keeps an answer back until it has ended, then tells it as `finish` leaves it."""

    def __init__(self, chunks: Chunks, finish: Callable[[Whole], Whole]) -> None:
        self._chunks = chunks
        self._finish = finish
        self._whole = Whole()

    def tell(self, piece: Piece) -> Iterator[ChatChunk]:
        self._whole.add(piece)
        if isinstance(piece, Ended):
            answer = self._finish(self._whole)
            yield self._chunks.opening(0)
            yield self._chunks.chunk(0, {"content": answer.content})
            yield self._chunks.chunk(0, {}, finish_word(answer.ended))
