"""The committed playground build matches its source, is complete and is small."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

from quicksilver.server.endpoints.playground.route import STATIC

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
SOURCES = ("index.html", "package.json", "package-lock.json", "stamp.ts", "tsconfig.json", "vite.config.ts")
MAX_FIRST_LOAD_BYTES = 300_000
PAGE_FILES = re.compile(r'(?:src|href)="(/assets/[^"]+)"')
STATIC_IMPORTS = re.compile(r"""(?:^|[;}])(?:import|export)[^;"'()]*["'](\./[^"']+)["']""")


def digests(root: Path, paths: list[Path]) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def record() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((STATIC / "build.json").read_text())
    return loaded


def test_build_was_made_from_this_source() -> None:
    paths = [*(WEB / name for name in SOURCES), *(p for p in (WEB / "src").rglob("*") if p.is_file())]
    named = sorted(digests(WEB, paths).items())
    lines = "".join(f"{digest}  {name}\n" for name, digest in named)
    assert record()["sources"] == hashlib.sha256(lines.encode()).hexdigest(), "run `make web` and commit the build"


def test_built_files_are_those_that_were_recorded() -> None:
    paths = [p for p in STATIC.rglob("*") if p.is_file() and p.name != "build.json"]
    assert digests(STATIC, paths) == record()["files"]


def first_load() -> set[Path]:
    """The page, the files that it names, and the files that these import when they are loaded, not on demand."""
    found: set[Path] = set()
    waiting = [STATIC / "index.html"]
    while waiting:
        path = waiting.pop()
        found.add(path)
        text = path.read_text() if path.suffix in {".html", ".js"} else ""
        named = PAGE_FILES.findall(text) if path.suffix == ".html" else STATIC_IMPORTS.findall(text)
        waiting.extend(STATIC / "assets" / Path(name).name for name in named)
        waiting = [each for each in waiting if each not in found]
    return found


def test_first_load_is_small() -> None:
    assert sum(len(gzip.compress(p.read_bytes())) for p in first_load()) < MAX_FIRST_LOAD_BYTES
    # Also uncompressed, as a proxy without gzip would send it.
    assert sum(p.stat().st_size for p in first_load()) < MAX_FIRST_LOAD_BYTES


def test_everything_together_is_small() -> None:
    files = [p for p in STATIC.rglob("*") if p.is_file()]
    assert sum(len(gzip.compress(p.read_bytes())) for p in files) < MAX_FIRST_LOAD_BYTES


def test_editor_is_loaded_on_demand() -> None:
    with_editor = [p for p in STATIC.rglob("*.js") if "cm-content" in p.read_text()]
    assert with_editor
    assert first_load().isdisjoint(with_editor)


def test_page_names_no_other_origin_and_holds_nothing_inline() -> None:
    page = (STATIC / "index.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "<style" not in page
    assert "onload=" not in page
    assert page.count("<script") == page.count('<script type="module" crossorigin src="/assets/')
