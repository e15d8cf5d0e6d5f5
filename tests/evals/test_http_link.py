"""A busy server is retried, a refusal is not, and every error is one sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.responses import JSONResponse, PlainTextResponse, Response

from quicksilver.errors import EngineUnavailable, InvalidRequest, NotFound, QuicksilverError
from quicksilver.evals.http_link import MAX_PAUSES, Link
from quicksilver.server.config import ServerConfig
from tests.evals.serving import listening

BUSY = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
SPENT = {"error": {"message": "no credit is left", "code": "insufficient_quota"}}


@asynccontextmanager
async def answering(home: Path, replies: Sequence[Response]) -> AsyncIterator[tuple[Link, list[Response]]]:
    """A link to a server with scripted replies. The remaining replies are returned too."""
    app, left = FastAPI(), list(replies)

    @app.get("/v1/thing")
    async def thing() -> Response:
        return left.pop(0)

    async with listening(app, ServerConfig(home=home)) as url, aclosing(Link(url + "/")) as link:
        yield link, left


def busy(status: int) -> Response:
    return JSONResponse(BUSY, status, {"retry-after": "0", "x-should-retry": "true"})


async def test_a_busy_server_is_waited_for(tmp_path: Path) -> None:
    async with answering(tmp_path, [busy(429), busy(503), JSONResponse({"a": 1})]) as (link, left):
        assert await link.ask("GET", "thing") == {"a": 1}
    assert left == []


async def test_but_not_for_ever(tmp_path: Path) -> None:
    async with answering(tmp_path, [busy(429)] * (MAX_PAUSES + 5)) as (link, left):
        with pytest.raises(QuicksilverError, match="slow down") as caught:
            await link.ask("GET", "thing")
    assert (caught.value.code, len(left)) == ("rate_limit_exceeded", 4)


async def test_nor_where_waiting_does_not_help(tmp_path: Path) -> None:
    spent = JSONResponse(SPENT, 429, {"x-should-retry": "false"})
    async with answering(tmp_path, [spent, JSONResponse({})]) as (link, left):
        with pytest.raises(QuicksilverError, match="no credit is left"):
            await link.ask("GET", "thing")
    assert len(left) == 1


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (JSONResponse({"error": {"message": "bad n"}}, 400), InvalidRequest, "bad n"),
        (JSONResponse(["x"], 500), QuicksilverError, "status 500"),
        (PlainTextResponse("<html>", 502), QuicksilverError, "status 502"),
        (PlainTextResponse("<html>"), NotFound, "quicksilver server"),
        (JSONResponse({"error": "x"}, 404), NotFound, "/v1 behind it"),
    ],
)
async def test_refusals_are_one_sentence(
    tmp_path: Path, reply: Response, kind: type[QuicksilverError], words: str
) -> None:
    async with answering(tmp_path, [reply]) as (link, _):
        with pytest.raises(kind, match=words) as caught:
            await link.ask("GET", "thing")
    assert "\n" not in caught.value.message
    assert link.url in caught.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "127.0.0.1/v1", "http://[/v1", "nonsense", ""])
async def test_a_wrong_address_is_said(url: str) -> None:
    async with aclosing(Link(url)) as link:
        with pytest.raises(EngineUnavailable, match="no answer from"):
            await link.ask("GET", "thing")
