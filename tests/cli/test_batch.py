"""`quicksilver batch`: a file is answered without a server, and a second run continues."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def line(custom_id: str, **fields: object) -> bytes:
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0, **fields}
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return orjson.dumps(row) + b"\n"


def test_a_file_is_answered_and_continued(tmp_path: Path) -> None:
    nano()
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line("a") + line("b", temperature=9))
    first = quicksilver("batch", str(source), str(target), "--model", MODEL)
    assert first.returncode == 1, first.stderr
    assert "2 lines answered, 1 of them with an error, 0 skipped" in first.stderr
    rows = {row["custom_id"]: row for row in map(orjson.loads, target.read_bytes().splitlines())}
    assert rows["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert rows["b"]["response"]["status_code"] == 400
    again = quicksilver("batch", str(source), str(target), "--model", MODEL)
    assert (again.returncode, len(target.read_bytes().splitlines())) == (0, 2)
    assert "0 lines answered, 0 of them with an error, 2 skipped" in again.stderr


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    missing = quicksilver("batch", str(source), str(tmp_path / "out.jsonl"))
    assert missing.returncode != 0
    assert "cannot read" in missing.stderr
    source.write_text("no json\n")
    broken = quicksilver("batch", str(source), str(tmp_path / "out.jsonl"))
    assert broken.returncode != 0
    assert "line 1" in broken.stderr
