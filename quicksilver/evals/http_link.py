"""HTTP connection to one server. Refusals and network errors become one-sentence errors.

A busy server (429 or 503) is retried after the delay it announces, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx

from quicksilver.errors import (
    AuthenticationFailed,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    QuicksilverError,
)

# Maximum number of retries of one request to a busy server.
MAX_PAUSES = 10
MAX_PAUSE_S = 60.0
# Seconds without a received byte. Open streams send heartbeats far more often.
TIMEOUT_S = 120.0

_KINDS: dict[int, type[QuicksilverError]] = {
    400: InvalidRequest,
    401: AuthenticationFailed,
    403: PermissionDenied,
}


class Link:
    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None))

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the whole reply as JSON."""
        async with self._opened(method, path, body) as response:
            with self.reading():
                return json.loads(await response.aread())

    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """Yield the lines of a streamed reply. Closing the generator closes the connection."""
        async with self._opened("POST", path, body) as response, aclosing(_lines(response)) as lines:
            while True:
                with self.reading():
                    line = await anext(lines, None)
                if line is None:
                    return
                yield line

    async def aclose(self) -> None:
        await self._http.aclose()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn connection errors and malformed replies into one-sentence errors."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnavailable(f"no answer from {self.url}: {error or type(error).__name__}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise self._foreign() from error

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncGenerator[httpx.Response, None]:
        """Open a reply, retrying while the server is busy. Refusals are raised."""
        with self.reading():
            request = self._http.build_request(method, f"{self.url}/{path}", json=body, headers=self._headers)
        for num_left in reversed(range(MAX_PAUSES + 1)):
            with self.reading():
                response = await self._http.send(request, stream=True)
            async with aclosing(response):
                if response.is_success:
                    yield response
                    return
                with self.reading():
                    await response.aread()
            pause_s = _pause_of(response) if num_left else None
            if pause_s is None:
                raise self._refusal(response)
            await asyncio.sleep(pause_s)

    def _refusal(self, response: httpx.Response) -> QuicksilverError:
        said = _error_of(response)
        code, message = str(said.get("code") or "refused"), str(said.get("message") or f"status {response.status_code}")
        if response.status_code == 404:
            return ModelNotFound(f"{self.url}: {message}") if code == ModelNotFound.code else self._foreign()
        kind = _KINDS.get(response.status_code, QuicksilverError)
        return kind(f"{self.url} refused ({response.status_code}): {message}", code=code)

    def _foreign(self) -> QuicksilverError:
        return NotFound(
            f"{self.url} does not answer as a quicksilver server does; give the URL that `quicksilver serve` prints, "
            "and /v1 behind it",
            code="foreign_server",
        )


async def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    async for line in response.aiter_lines():
        yield line


def _pause_of(response: httpx.Response) -> float | None:
    """Return the seconds to wait before a retry, or None if a retry is pointless."""
    if response.status_code not in (429, 503) or response.headers.get("x-should-retry") == "false":
        return None
    try:
        return min(max(float(response.headers.get("retry-after", 1)), 0.0), MAX_PAUSE_S)
    except ValueError:
        return 1.0


def _error_of(response: httpx.Response) -> Mapping[str, Any]:
    try:
        said = response.json()["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return said if isinstance(said, dict) else {}
