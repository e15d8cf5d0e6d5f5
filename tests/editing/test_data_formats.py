"""Merges into JSON, YAML, Markdown, HTML and CSS by keys, sections, elements and rules."""

from __future__ import annotations

import json

import pytest

from quicksilver.editing.apply import Copy, Rewrite, merge

_JSON = """{
  "name": "app",
  "scripts": {
    "build": "tsc",
    "test": "vitest"
  },
  "dependencies": {
    "react": "^18.0.0"
  }
}
"""
_YAML = """version: 3
services:
  web:
    image: nginx
    ports:
      - "80:80"
  db:
    image: postgres:15
    volumes:
      - data:/var
volumes:
  data:
"""
_MARKDOWN = """# Title

Intro text here.

## Install

Run pip.

## Usage

Call it.

### Options

Many.
"""
_HTML = """<!doctype html>
<html>
<body>
  <div id="top">
    <p>one</p>
  </div>
  <div id="rest">
    <p>two</p>
  </div>
</body>
</html>
"""
_CSS = """.a {
  color: red;
}

.b {
  color: blue;
}
"""


def _merged(original: str, update: str) -> str:
    parts = merge(original, update)
    assert all(isinstance(part, Copy) for part in parts), "a model is not needed"
    return "".join(part.text for part in parts if isinstance(part, Copy))


@pytest.mark.parametrize(
    ("update", "changes"),
    [
        (
            '{\n  // ...\n  "scripts": {\n    // ...\n    "test": "vitest run",\n'
            '    "lint": "eslint ."\n  },\n  // ...\n}',
            {"scripts": {"build": "tsc", "test": "vitest run", "lint": "eslint ."}},
        ),
        ('{\n  // ... existing code ...\n  "version": "2.0.0"\n}', {"version": "2.0.0"}),
        ('  "dependencies": {\n    "react": "^19.0.0"\n  }', {"dependencies": {"react": "^19.0.0"}}),
        ('{\n  "private": true,\n  // ...\n}', {"private": True}),
    ],
)
def test_json_members_are_replaced_and_added_with_their_commas(update: str, changes: dict[str, object]) -> None:
    merged = _merged(_JSON, update)
    assert json.loads(merged) == json.loads(_JSON) | changes
    kept = [line for line in _JSON.split("\n") if line.rstrip(",") in {new.rstrip(",") for new in merged.split("\n")}]
    assert len(kept) >= len(_JSON.split("\n")) - 1


@pytest.mark.parametrize(
    ("update", "old", "new"),
    [
        ("services:\n  # ...\n  db:\n    image: postgres:16\n    # ...", "postgres:15", "postgres:16"),
        ("services:\n  # ...\n  cache:\n    image: redis", "data:/var\n", "data:/var\n  cache:\n    image: redis\n"),
    ],
)
def test_yaml_keys_are_replaced_and_added(update: str, old: str, new: str) -> None:
    assert _merged(_YAML, update) == _YAML.replace(old, new)


def test_a_markdown_section_is_replaced() -> None:
    marker = "<!-- ... existing content ... -->"
    assert _merged(_MARKDOWN, f"{marker}\n\n## Install\n\nRun `make`.\n\n{marker}") == _MARKDOWN.replace(
        "Run pip.", "Run `make`."
    )


def test_a_markdown_section_with_subsections_is_not_replaced_by_its_first_paragraph() -> None:
    parts = merge(_MARKDOWN, "## Usage\n\nCall it twice.\n")
    assert "Many." in "".join(part.text if isinstance(part, Copy) else part.original for part in parts)


def test_an_html_element_is_replaced_by_its_id() -> None:
    update = '<!-- ... -->\n  <div id="top">\n    <p>ONE</p>\n  </div>\n<!-- ... -->'
    assert _merged(_HTML, update) == _HTML.replace("<p>one</p>", "<p>ONE</p>")


def test_yaml_keys_that_a_marker_stands_for_are_kept() -> None:
    original = "build:\n  - make all\n  - make test\n\nafter:\n  - pack\n\ncache:\n  - build\n"
    update = "build:\n  - make all\n  - make check\n# ...\n\ncache:\n  - build\n"
    assert merge(original, update) == [Copy(original.replace("make test", "make check"))]


def test_items_of_a_yaml_key_that_is_cut_off_are_kept() -> None:
    original = "name: a\njobs:\n" + "".join(f"  - step {i} of the job\n" for i in range(9))
    assert merge(original, "jobs:\n  - step 0 of the job\n") == [Copy(original)]
    changed = merge(original, "jobs:\n  - step 0 of the job\n  - new step\n")
    assert any(isinstance(part, Rewrite) for part in changed)


def test_a_markdown_heading_at_the_end_of_an_update_keeps_its_section() -> None:
    original = "# A\n\n## One\n\nText of one.\n\n## Two\n\nText of two.\n\nMore.\n"
    assert merge(original, "## One\n\nNew text.\n\n## Two\n") == [Copy(original.replace("Text of one", "New text"))]


@pytest.mark.parametrize("update", ["\n", "\n\n<!-- ... -->", "<!-- ... -->\n\n"])
def test_a_blank_update_of_markdown_changes_nothing(update: str) -> None:
    assert merge("# A\n\nText.\n", update) == [Copy("# A\n\nText.\n")]


def test_a_css_rule_after_a_media_block_is_not_indented() -> None:
    rules = "".join(f".{name} {{\n  color: red;\n}}\n\n" for name in "xyz")
    original = f"{rules}@media print {{\n  .x {{\n    color: blue;\n  }}\n}}\n"
    rule = ".b {\n  top: 0;\n}\n"
    assert merge(original, f"/* ... */\n\n{rule}") == [Copy(f"{original}\n{rule}")]


def test_a_css_rule_is_replaced_and_added() -> None:
    assert _merged(_CSS, "/* ... */\n.b {\n  color: green;\n}\n") == _CSS.replace("blue", "green")
    assert _merged(_CSS, "/* ... */\n.c {\n  margin: 0;\n}\n") == _CSS + "\n.c {\n  margin: 0;\n}\n"
