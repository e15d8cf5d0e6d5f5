"""JSON replies, and work that is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

Result = TypeVar("Result")


def json_response(payload: Mapping[str, Any], headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(orjson.dumps(payload), status, headers, media_type="application/json")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client disconnects. The body must have been read before."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
