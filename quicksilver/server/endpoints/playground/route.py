"""The playground: files of the package at `/` and `/assets`, and the settings of the page.

Every file is read once and served from memory by its exact name, so no request reads the disk. The content security
policy allows script and style from this origin only, nothing inline, and no string as markup.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver import __version__
from quicksilver.errors import NotFound
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.services import services_of

router = APIRouter(include_in_schema=False)

# The documentation of a checkout. An installed package has none.
DOCS = Path(__file__).parents[4] / "docs"
DOCS_FOLDERS = ("concepts", "guides", "reference")
STATIC = Path(__file__).parents[2] / "static"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
YEAR_S = 31_536_000


@dataclass(frozen=True, slots=True)
class Built:
    """One file of the build, ready to send."""

    body: bytes
    gzipped: bytes
    media_type: str
    etag: str


@cache
def built_files() -> dict[str, Built]:
    """By path below `static/`; the record of the build itself is not served."""
    found = (path for path in sorted(STATIC.rglob("*")) if path.is_file() and path.name != "build.json")
    return {path.relative_to(STATIC).as_posix(): _read(path) for path in found}


def _read(path: Path) -> Built:
    body = path.read_bytes()
    media_type = mimetypes.types_map.get(path.suffix, "application/octet-stream")
    return Built(body, gzip.compress(body, mtime=0), media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


@cache
def docs_pages() -> dict[str, bytes]:
    """Markdown by path below `docs/`, in order of the paths."""
    found = (path for folder in DOCS_FOLDERS for path in sorted((DOCS / folder).rglob("*.md")))
    return {path.relative_to(DOCS).as_posix(): path.read_bytes() for path in found}


@router.get("/")
async def page(request: Request) -> Response:
    return _send(request, "index.html", "no-cache")


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    # The name contains a hash of the content, so the content of a name never changes.
    return _send(request, f"assets/{name}", f"public, max-age={YEAR_S}, immutable")


@router.get("/playground/about")
async def about(request: Request) -> Response:
    services = services_of(request)
    info = services.engine.info
    reply = {
        "version": __version__,
        "model": services.config.card.id,
        "device": info.device,
        "accounts": services.accounts is not None,
        "context_len": info.context_len,
        "max_canvas_len": info.max_canvas_len,
        "reasoning_effort": services.config.reasoning_effort or "none",
        "docs": list(docs_pages()),
    }
    return json_response(reply, {"cache-control": "no-store"})


@router.get("/playground/docs/{name:path}")
async def docs_page(name: str) -> Response:
    page = docs_pages().get(name)
    if page is None:
        raise NotFound("There is no page of this name in the documentation.")
    return Response(page, headers={**PAGE_HEADERS, "cache-control": "no-cache"}, media_type="text/plain; charset=utf-8")


def _send(request: Request, name: str, caching: str) -> Response:
    built = built_files().get(name)
    if built is None:
        raise NotFound("There is nothing at this path.")
    headers = {**PAGE_HEADERS, "cache-control": caching, "etag": built.etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == built.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(built.gzipped, headers={**headers, "content-encoding": "gzip"}, media_type=built.media_type)
    return Response(built.body, headers=headers, media_type=built.media_type)
