"""Deletes what no file, job or model needs any more, in the store and in the home folder. Blocking.

| what | when |
|---|---|
| pieces of an upload that never became a file or model | after a day |
| captured suggestions | after `stored_days` |
| the model and the result files of a job that failed or was cancelled | at the next sweep |
| folders of jobs that have ended | at once; of jobs that the store does not have, after a week |
| adapter files of models that were deleted | after an hour |
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from quicksilver.accounts.stored_files import FILE, PIECE
from quicksilver.tuning.feedback import CAPTURE
from quicksilver.tuning.jobs import ENDED, JOB, read_job
from quicksilver.tuning.models import ADAPTERS, MODEL, TUNED_MARK, delete_results

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

log = logging.getLogger("quicksilver.tuning")

HOUR_S, DAY_S = 3600, 86_400
# Below the home folder: checkpoints of jobs, by the id of the job.
JOBS = "fine_tuning"


def sweep_store(objects: ObjectStore, stored_days: float) -> None:
    """Objects of all projects that no other object needs."""
    from quicksilver.accounts.objects import ObjectScan

    scan, now = ObjectScan(objects), time.time()
    num_captures = scan.delete_older(CAPTURE, now - stored_days * DAY_S)
    num_pieces = scan.delete_orphans(PIECE, (FILE, MODEL), now - DAY_S)
    if num_captures or num_pieces:
        log.info("deleted %d captured suggestions and %d pieces of uploads", num_captures, num_pieces)
    for owner, stored in scan.all(JOB):
        job = read_job(owner, stored)
        # A trainer deletes them itself, unless it was killed.
        if job.status in ("failed", "cancelled") and int(job.reply["finished_at"] or 0) > now - 2 * DAY_S:
            delete_results(objects, job)


def sweep_home(objects: ObjectStore, home: Path) -> None:
    """Folders of jobs and copies of adapters on this machine."""
    from quicksilver.accounts.objects import ObjectScan

    # The folders are listed first: one that appears later belongs to a job or model that is in use.
    folders, copies = list(_folders(home / JOBS)), list(_folders(home / ADAPTERS))
    scan = ObjectScan(objects)
    statuses = {stored.id: read_job(owner, stored).status for owner, stored in scan.all(JOB)} if folders else {}
    for folder in folders:
        status = statuses.get(folder.name)
        if status in ENDED or (status is None and _age(folder) > 7 * DAY_S):
            shutil.rmtree(folder, ignore_errors=True)
    used = {orjson.loads(stored.body)["sha256"] for _, stored in scan.all(MODEL)} if copies else set[str]()
    for folder in copies:
        _sweep_copy(folder, used)


def _sweep_copy(folder: Path, used: Collection[str]) -> None:
    """Only folders with the mark of a tuned model; others have adapters that an operator stored."""
    mark = folder / TUNED_MARK
    if folder.name not in used and mark.exists() and _age(mark) > HOUR_S:
        shutil.rmtree(folder, ignore_errors=True)


def _folders(parent: Path) -> Iterator[Path]:
    return (each for each in parent.iterdir() if each.is_dir()) if parent.is_dir() else iter(())


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
