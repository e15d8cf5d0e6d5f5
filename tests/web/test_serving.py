"""The routes of the playground: headers, caching, and no other files."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from quicksilver.server.endpoints.playground import route
from quicksilver.server.endpoints.playground.route import built_files
from tests.web.playground_app import playground_app


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return playground_app(tmp_path)


async def get(app: FastAPI, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_page_runs_under_a_policy_without_inline_script_or_style(app: FastAPI) -> None:
    reply = await get(app, "/")
    policy = reply.headers["content-security-policy"]
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["referrer-policy"] == "no-referrer"


async def test_assets_are_kept_for_good_and_the_page_is_asked_for_again(app: FastAPI) -> None:
    name = next(name for name in built_files() if name.endswith(".js"))
    asset = await get(app, f"/{name}")
    page = await get(app, "/")
    assert "immutable" in asset.headers["cache-control"]
    assert asset.headers["content-type"].startswith(("text/javascript", "application/javascript"))
    assert page.headers["cache-control"] == "no-cache"
    again = await get(app, "/", if_none_match=page.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")


async def test_plain_and_gzipped_bodies_are_the_same(app: FastAPI) -> None:
    packed = await get(app, "/", accept_encoding="gzip")
    plain = await get(app, "/", accept_encoding="identity")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content


@pytest.mark.parametrize(
    "path", ["/assets/missing.js", "/assets/..%2findex.html", "/assets/%2e%2e/app.py", "/build.json", "/assets/"]
)
async def test_nothing_else_is_served(app: FastAPI, path: str) -> None:
    assert (await get(app, path)).status_code == 404


async def test_about_has_the_fields_that_the_page_reads(app: FastAPI) -> None:
    about = (await get(app, "/playground/about")).json()
    assert about["accounts"] is False
    assert about["reasoning_effort"] == "none"
    fields = {"version", "model", "device", "accounts", "context_len", "max_canvas_len", "reasoning_effort", "docs"}
    assert set(about) == fields


async def test_docs_are_plain_text_and_nothing_beside_them_is_served(app: FastAPI) -> None:
    assert "guides/playground.md" in (await get(app, "/playground/about")).json()["docs"]
    page = await get(app, "/playground/docs/guides/playground.md")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert page.text.startswith("# Playground")
    for path in ("guides/..%2findex.md", "..%2fREADME.md", "guides", "", "design/architecture.md"):
        assert (await get(app, f"/playground/docs/{path}")).status_code == 404


async def test_server_without_docs_lists_none(app: FastAPI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(route, "DOCS", tmp_path)
    route.docs_pages.cache_clear()
    assert (await get(app, "/playground/about")).json()["docs"] == []
    route.docs_pages.cache_clear()
