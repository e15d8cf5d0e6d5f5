"""RequestBody: the body of a request, read whole if it is short, so that the request can be sent twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request

from quicksilver.server.config import ServerConfig
from quicksilver.server.http.body import BodyClock


class RequestBody:
    """`read` first. `leading` is then the body, or the part of it that fits `max_bytes`."""

    def __init__(self, request: Request, config: ServerConfig, max_bytes: int) -> None:
        self._request = request
        self._clock = BodyClock(config.timeouts)
        self._max_bytes = max_bytes
        self._num_read = 0
        self.leading = b""
        # Whether `leading` is the whole body, so that the request can be sent again.
        self.is_repeatable = False
        self._is_whole = False

    async def read(self) -> None:
        """Raises ClientDisconnect, and RequestTimeout if the body is slow."""
        pieces = [piece async for piece in self._pieces(self._max_bytes)]
        self.leading, self.is_repeatable = b"".join(pieces), self._is_whole

    @property
    def num_bytes(self) -> int | None:
        """None if it is not known."""
        if self.is_repeatable:
            return len(self.leading)
        announced = self._request.headers.get("content-length")
        return int(announced) if announced is not None and announced.isascii() and announced.isdigit() else None

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """What follows `leading`, as it arrives and framed as `num_bytes` announces."""
        is_chunked = self.num_bytes is None
        if is_chunked:
            yield b"%x\r\n%b\r\n" % (len(self.leading), self.leading)
        else:
            yield self.leading
        async for piece in self._pieces(None):
            if piece:
                yield b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
        if is_chunked:
            yield b"0\r\n\r\n"

    async def _pieces(self, max_bytes: int | None) -> AsyncGenerator[bytes, None]:
        while not self._is_whole and (max_bytes is None or self._num_read <= max_bytes):
            message = await self._clock.receive(self._request, self._num_read)
            piece: bytes = message.get("body", b"")
            self._num_read += len(piece)
            self._is_whole = not message.get("more_body", False)
            yield piece
