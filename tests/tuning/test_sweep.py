"""What is deleted from the store and from the home folder, and what stays."""

from __future__ import annotations

import hashlib
import os
import time
from io import BytesIO
from pathlib import Path

from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.stored_files import PIECE, describe, write_file
from quicksilver.hub.adapter_files import store_adapter
from quicksilver.tuning.feedback import CAPTURE
from quicksilver.tuning.jobs import JobStore, TuningJob, new_job
from quicksilver.tuning.models import (
    ADAPTERS,
    TunedModel,
    adapter_file,
    delete_model,
    find_model,
    register,
    tuned_name,
)
from quicksilver.tuning.sweep import DAY_S, JOBS, sweep_home, sweep_store

NOW = int(time.time())


def add_job(objects: ObjectStore, owner: str = "me") -> TuningJob:
    job = TuningJob(owner, new_job("nano", "file-1", {"type": "supervised"}))
    JobStore(objects).create(job)
    return job


def add_model(objects: ObjectStore, name: str, content: bytes = b"adapter", owner: str = "me") -> TunedModel:
    model = TunedModel(name, "nano", hashlib.sha256(content).hexdigest(), len(content), 4, "ftjob-1", NOW)
    register(objects, owner, model, BytesIO(content))
    return model


def make_old(path: Path) -> None:
    for each in (path, *path.iterdir()):
        os.utime(each, (NOW - 30 * DAY_S, NOW - 30 * DAY_S))


def test_captures_are_deleted_when_they_are_old_also_of_a_project_that_stores_nothing_more(
    objects: ObjectStore,
) -> None:
    for days in (1, 29, 31):
        objects.put("me", [StoredObject(CAPTURE, f"{days}", b"{}", created_at=NOW - days * DAY_S)])
    sweep_store(objects, stored_days=30)
    assert objects.ids("me", CAPTURE, "") == ["1", "29"]


def test_pieces_of_an_upload_that_was_killed_are_deleted(objects: ObjectStore) -> None:
    write_file(objects, "me", (file := describe("a", "fine-tune", 3)), BytesIO(b"abc"))
    add_model(objects, "ft:nano::1")
    whole = objects.num_bytes("me")
    for name, age in (("lost", 2 * DAY_S), ("under way", 60)):
        objects.put("me", [StoredObject(PIECE, f"{name}/0", b"12345", name, NOW - age)])
    sweep_store(objects, stored_days=30)
    assert objects.num_bytes("me") == whole + 5
    assert objects.ids("me", PIECE, file["id"])
    assert not objects.ids("me", PIECE, "lost")


def test_a_cancelled_job_has_no_model(objects: ObjectStore) -> None:
    cancelled, open_ = add_job(objects), add_job(objects)
    names = [tuned_name("nano", None, job.id) for job in (cancelled, open_)]
    for name in names:
        add_model(objects, name)
    JobStore(objects).cancel("me", cancelled.id)
    sweep_store(objects, stored_days=30)
    assert [find_model(objects, "me", name) is not None for name in names] == [False, True]


def test_folders_of_jobs_that_ended_are_removed(objects: ObjectStore, tmp_path: Path) -> None:
    ended, open_ = add_job(objects), add_job(objects, "another")
    JobStore(objects).cancel("me", ended.id)
    for name in (ended.id, open_.id, "ftjob-new", "ftjob-old"):
        (tmp_path / JOBS / name).mkdir(parents=True)
    make_old(tmp_path / JOBS / "ftjob-old")
    make_old(tmp_path / JOBS / open_.id)
    sweep_home(objects, tmp_path)
    assert {path.name for path in (tmp_path / JOBS).iterdir()} == {open_.id, "ftjob-new"}


def test_adapter_files_of_deleted_models_are_removed(objects: ObjectStore, tmp_path: Path) -> None:
    names = ("ft:nano::1", "ft:nano::2", "ft:nano::3")
    models = [add_model(objects, name, name.encode()) for name in names]
    paths = [adapter_file(objects, "me", model, tmp_path / ADAPTERS) for model in models]
    operators = store_adapter({"adapter.safetensors": b"of an operator"}, tmp_path)
    for path in (*paths[:2], Path(operators.path)):
        make_old(path.parent)
    for name in names[1:]:
        delete_model(objects, "me", name)
    sweep_home(objects, tmp_path)
    # The second was deleted. The third was deleted just now, and a request may be about to read it.
    assert [path.exists() for path in (*paths, Path(operators.path))] == [True, False, True, True]
