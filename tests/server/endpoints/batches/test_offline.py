"""Batch files without a server: answered, continued, refused."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.batches.offline import answer_file, open_lines, remove_torn_line
from tests.server.conftest import Served, chat
from tests.server.endpoints.batches.test_route import line


async def test_a_second_run_continues(served: Served, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = {**line(5), "body": chat(temperature=9)}
    message = {"custom_id": "m", "method": "POST", "url": "/v1/messages", "body": {**chat(), "max_tokens": 9}}
    source.write_bytes(b"\n".join(map(orjson.dumps, [*(line(i) for i in range(5)), bad, message])))
    lines = open_lines(source)
    with target.open("ab") as output:
        await answer_file(served.app, lines[:3], output, 2, lambda has_failed: None)
    with target.open("ab") as output:
        output.write(b'{"custom_id": "line-3", "resp')
    done = remove_torn_line(target)
    assert done == {"line-0", "line-1", "line-2"}
    failed: list[bool] = []
    with target.open("ab") as output:
        await answer_file(served.app, [each for each in lines if each.custom_id not in done], output, 2, failed.append)
    rows = [orjson.loads(row) for row in target.read_bytes().splitlines()]
    assert sorted(row["custom_id"] for row in rows) == ["line-0", "line-1", "line-2", "line-3", "line-4", "line-5", "m"]
    assert sorted(failed) == [False, False, False, True]
    assert len(served.engine.seen) == 6


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        open_lines(tmp_path / "none")
    (tmp_path / "in.jsonl").write_text('{"custom_id": 1}\n')
    with pytest.raises(InvalidRequest, match="line 1"):
        open_lines(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").write_bytes(orjson.dumps(line(0, url="/v1/embeddings")))
    with pytest.raises(InvalidRequest, match="url is not"):
        open_lines(tmp_path / "in.jsonl")
    (tmp_path / "out.jsonl").write_text("something else\n")
    with pytest.raises(InvalidRequest, match="no output of a batch"):
        remove_torn_line(tmp_path / "out.jsonl")
    assert remove_torn_line(tmp_path / "new.jsonl") == set()
