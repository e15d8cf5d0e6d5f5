"""The prepare stage: which rows a share takes, and the requests for proposals."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from quicksilver.hub.data_files import is_held_out
from quicksilver.training import sources
from quicksilver.training.prepare import Share, picked_rows
from quicksilver.training.rows import TextRow
from quicksilver.training.sources import held_out_edits, training_rows
from tests.training.synthesis.test_commits import RECORD


def test_rows_that_another_run_used_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.SOURCES, "words", lambda folder, keep, rng: (TextRow(str(i)) for i in range(50)))
    first = list(picked_rows(Share("words", 20), Path(), seed=1))
    rest = list(picked_rows(Share("words", 20, skip=20), Path(), seed=1))
    assert len({row.text for row in [*first, *rest] if isinstance(row, TextRow)}) == 40


def test_proposals_are_asked_of_records_that_no_training_row_comes_from(tmp_path: Path) -> None:
    ids = [f"record-{i}" for i in range(80)]
    (tmp_path / "edits").mkdir()
    lines = "".join(json.dumps({**RECORD, "id": name, "path": f"{name}.py"}) + "\n" for name in ids)
    (tmp_path / "edits" / "train.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    folder = tmp_path / "train"
    asked = {row.request.path.removesuffix(".py") for _, row in held_out_edits(folder, 1)} - {""}
    trained = {
        row.request.path.removesuffix(".py")
        for row in training_rows("commits_next", folder, 1)
        if hasattr(row, "request")
    }
    assert asked
    assert all(is_held_out(name) for name in asked)
    assert not asked & (trained - {""})
