from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.eval_gpu import copy_held_out
from quicksilver.errors import InvalidRequest
from quicksilver.evals.data import held_out_records, pack_records
from quicksilver.hub.data_files import read_records
from tests.evals.build import HELD_OUT, TRAINED, write_pack, write_rows


def test_only_held_out_packages_are_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "train" / "code_python.jsonl.xz", [{"p": HELD_OUT, "t": "a"}, {"p": TRAINED, "t": "b"}])
    assert [record["t"] for record in held_out_records(tmp_path, "code_python")] == ["a"]


def test_small_copy_reads_as_the_whole_does(tmp_path: Path) -> None:
    data, small = write_pack(tmp_path / "data", [{"task": "piqa", "q": "?"}]), tmp_path / "small"
    for name in ("code_python", "code_js_ts", "edits_python"):
        write_rows(data / "train" / f"{name}.jsonl.xz", [{"p": HELD_OUT, "t": name}, {"p": TRAINED, "t": "b"}])
    for name in ("tools_sgd_dev", "tools_sgd_test"):
        write_rows(data / "train" / f"{name}.jsonl.xz", [{"tools": []}])
    assert len(copy_held_out(data, small)) == 6
    assert list(held_out_records(small, "edits_python")) == list(held_out_records(data, "edits_python"))
    assert pack_records(small, "piqa") == [{"task": "piqa", "q": "?"}]
    assert len(list(read_records(small / "train" / "code_js_ts.jsonl.xz"))) == 1


def test_missing_data_names_the_file_or_the_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"eval_pack\.jsonl\.xz"):
        pack_records(tmp_path, "piqa")
    with pytest.raises(InvalidRequest, match="has no set sciq"):
        pack_records(write_pack(tmp_path, [{"task": "piqa"}]), "sciq")
