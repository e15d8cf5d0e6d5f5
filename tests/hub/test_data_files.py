"""Records of data files, and names that are held out from training."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.hub.data_files import is_held_out, read_records


def test_holding_out_depends_on_the_name_alone() -> None:
    names = [f"package-{i}" for i in range(2000)]
    held = [name for name in names if is_held_out(name)]
    assert held == [name for name in names if is_held_out(name)]
    assert 60 < len(held) < 190


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        list(read_records(tmp_path / "missing.jsonl.xz"))
