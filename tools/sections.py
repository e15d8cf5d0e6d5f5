"""Generated sections of hand-written pages.

A page marks a section with `<!-- begin NAME -->` and `<!-- end NAME -->`; a script replaces what stands between them.
The scripts share one command line: without arguments they write, with --check they fail where a page is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def fill(text: str, sections: Mapping[str, str]) -> str:
    """`text` with each named section replaced. A section without its markers is an error."""
    for name, body in sections.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise SystemExit(f"a page lacks the markers {begin} and {end}")
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        new = f"{begin}\n{body.strip()}\n{end}"
        text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def write_pages(pages: Mapping[Path, Mapping[str, str]], files: Mapping[Path, str] | None = None) -> int:
    """Fill the sections of each page and write each whole file; the exit code of a generating script."""
    contents = {path: fill(path.read_text(), sections) for path, sections in pages.items()} | dict(files or {})
    stale = [path for path, text in contents.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)}; run `make generate`")
        return bool(stale)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; a pipe inside a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
