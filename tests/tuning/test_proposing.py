"""Proposals: what is held out, when none is made, schedules, and acceptance."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.stored_files import read_pieces
from quicksilver.errors import Conflict, InvalidRequest, NotFound
from quicksilver.tuning import proposing
from quicksilver.tuning.feedback import FEEDBACK, REPORTS_OWNER
from quicksilver.tuning.jobs import JOB, JobStore, TuningJob, new_job, read_job
from quicksilver.tuning.models import TunedModel, find_model, register, tuned_name
from quicksilver.tuning.proposing import Schedule, accept, is_held_out, propose, propose_due, set_schedule
from tests.support.feedback import add_feedback


def lines(objects: ObjectStore, job: TuningJob, param: str) -> list[dict[str, Any]]:
    content = b"".join(read_pieces(objects, job.owner, job.reply[param]))
    return [orjson.loads(line) for line in content.splitlines()]


def end(objects: ObjectStore, job: TuningJob, status: str) -> None:
    """As the trainer ends it."""
    claimed = JobStore(objects).claim("trainer", ("nano",))
    assert claimed is not None
    assert claimed.id == job.id
    JobStore(objects).save(claimed, "trainer", is_open=False, status=status)


def test_a_fifth_is_held_out_and_stays_so(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 100, "me")
    job = propose(objects, tmp_path, "me", "nano")
    learned, held_out = (lines(objects, job, param) for param in ("training_file", "validation_file"))
    assert len(learned) + len(held_out) == 100
    assert 10 <= len(held_out) <= 30
    assert {line["prompt"] for line in held_out} == {f"a{i} = " for i in range(100) if is_held_out(f"cmpl-{i}")}
    assert (job.method, job.status, job.reply["model"]) == ("kto", "validating_files", "nano")


def test_no_proposal_is_made_without_enough_or_new_feedback(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 40, "me")
    with pytest.raises(InvalidRequest, match="40 reported suggestions; a proposal needs 50"):
        propose(objects, tmp_path, "me", "nano")
    add_feedback(objects, tmp_path, 60, "me")
    job = propose(objects, tmp_path, "me", "nano")
    with pytest.raises(Conflict, match=job.id):
        propose(objects, tmp_path, "me", "nano")
    end(objects, job, "proposed")
    with pytest.raises(InvalidRequest, match="no feedback is new"):
        propose(objects, tmp_path, "me", "nano")
    add_feedback(objects, tmp_path, 61, "me")
    assert propose(objects, tmp_path, "me", "nano").id != job.id


def test_a_schedule_proposes_when_it_is_due(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_feedback(objects, tmp_path, 60, "me")
    assert propose_due(objects, tmp_path, ("nano",)) == []
    set_schedule(objects, "me", Schedule("nano", 7))
    assert propose_due(objects, tmp_path, ("another",)) == []
    (job,) = propose_due(objects, tmp_path, ("nano",))
    assert job.owner == "me"
    end(objects, job, "proposed")
    add_feedback(objects, tmp_path, 70, "me")
    assert propose_due(objects, tmp_path, ("nano",)) == []
    later = proposing.time.time() + 8 * 86_400
    monkeypatch.setattr(proposing.time, "time", lambda: later)
    assert len(propose_due(objects, tmp_path, ("nano",))) == 1
    set_schedule(objects, "me", None)
    monkeypatch.setattr(proposing.time, "time", lambda: 2 * later)
    assert propose_due(objects, tmp_path, ("nano",)) == []


def test_a_proposal_counts_against_the_quota_of_jobs(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 60, "me")
    set_schedule(objects, "me", Schedule("nano", 7))
    other = TuningJob("me", new_job("nano", "file-1", {"type": "supervised"}))
    JobStore(objects).create(other)
    with pytest.raises(InvalidRequest, match="1 jobs that have not ended") as refused:
        propose(objects, tmp_path, "me", "nano", max_jobs=1)
    assert refused.value.code == "quota_exceeded"
    assert propose_due(objects, tmp_path, ("nano",), max_jobs=1) == []
    assert objects.ids("me", "file", "") == [], "nothing was uploaded"
    propose(objects, tmp_path, "me", "nano", max_jobs=2)
    with pytest.raises(InvalidRequest, match="2 jobs that have not ended"):
        JobStore(objects).check_quota("me", 2)


def test_a_proposal_is_charged_to_the_key_of_its_schedule(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 60, "me")
    set_schedule(objects, "me", Schedule("nano", 7, "key_1"))
    (job,) = propose_due(objects, tmp_path, ("nano",))
    assert job.key_id == "key_1"
    assert read_job("me", objects.get("me", JOB, job.id)).key_id == "key_1"  # type: ignore[arg-type]


def test_reports_in_the_store_are_read(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 60, "me")
    for line in (tmp_path / "feedback.jsonl").read_bytes().splitlines():
        objects.put(REPORTS_OWNER, [StoredObject(FEEDBACK, orjson.loads(line)["request_id"], line)])
    (tmp_path / "feedback.jsonl").unlink()
    assert propose(objects, tmp_path, "me", "nano").method == "kto"


def test_an_accepted_proposal_is_a_model_like_others(objects: ObjectStore, tmp_path: Path) -> None:
    add_feedback(objects, tmp_path, 60, "me")
    job = propose(objects, tmp_path, "me", "nano")
    name = tuned_name("nano", "feedback", job.id)
    model = TunedModel(name, "nano", "a" * 64, 1, 4, job.id, 1, is_proposed=True)
    register(objects, "me", model, BytesIO(b"x"))
    with pytest.raises(Conflict, match="validating_files"):
        accept(objects, "me", job.id)
    with pytest.raises(NotFound):
        accept(objects, "another", job.id)
    end(objects, job, "proposed")
    assert accept(objects, "me", job.id) == name
    assert find_model(objects, "me", name) == replace(model, is_proposed=False)
    stored = objects.get("me", JOB, job.id)
    assert stored is not None
    assert read_job("me", stored).reply["fine_tuned_model"] == name
    with pytest.raises(Conflict, match="succeeded"):
        accept(objects, "me", job.id)
