from __future__ import annotations

from pathlib import Path

from quicksilver.worker.step_record import MAX_BYTES, StepRecord, clear_step, read_step, record_path


def test_the_last_step_is_read_from_the_file(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "a.step")
    assert read_step(tmp_path / "a.step") == frozenset()
    record.write(["one", "two"])
    assert read_step(tmp_path / "a.step") == {"one", "two"}
    record.write([])
    assert read_step(tmp_path / "a.step") == frozenset()
    record.write(["one", "two"])
    assert read_step(tmp_path / "a.step") == {"one", "two"}
    record.write(["3"])
    assert read_step(tmp_path / "a.step") == {"3"}
    record.write([])
    assert read_step(tmp_path / "a.step") == frozenset()


def test_more_ids_than_fit_are_cut(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "a.step")
    record.write([f"{i:060}" for i in range(2000)])
    assert (tmp_path / "a.step").stat().st_size == MAX_BYTES
    assert 900 < len(read_step(tmp_path / "a.step")) < 2000


def test_a_missing_file_is_no_step(tmp_path: Path) -> None:
    assert read_step(record_path(tmp_path / "engine-1.sock")) == frozenset()


def test_a_step_that_did_not_end_the_worker_is_removed(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "a.step")
    record.write(["one"])
    clear_step(tmp_path / "a.step")
    assert read_step(tmp_path / "a.step") == frozenset()
    clear_step(tmp_path / "none.step")
    assert not (tmp_path / "none.step").exists()
