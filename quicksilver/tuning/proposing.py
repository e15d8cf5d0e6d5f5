"""Proposals: KTO jobs from captured feedback. Their adapters are served only after they were accepted. Blocking.

A fifth of the reported suggestions is held out. Before and after training, the job measures on it how many suggestions
would be accepted if only likely ones were shown (`selectivity` in the job). A project may have a schedule; the server
then makes a proposal whenever it is due and there is new feedback.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.stored_files import describe, write_file
from quicksilver.errors import Conflict, InvalidRequest, NotFound
from quicksilver.tuning.feedback import SETTING, judged_captures, read_reports
from quicksilver.tuning.hyperparameters import checked
from quicksilver.tuning.jobs import ENDED, JOB, MAX_JOBS, PROPOSAL, JobStore, TuningJob, new_job, read_job
from quicksilver.tuning.models import MODEL, find_model, tuned_name

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

log = logging.getLogger("quicksilver.tuning")

SCHEDULE = "propose"
SUFFIX = "feedback"
DIGEST = "feedback_digest"
# The fewest reported suggestions that a proposal is made from. One of HELD_OUT is held out.
MIN_LINES, HELD_OUT = 50, 5
DAY_S = 86_400

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A proposal for `model` every so many days. `key_id`: the key that is charged; None without accounts."""

    model: str
    every_days: float
    key_id: str | None = None


def set_schedule(objects: ObjectStore, owner: str, schedule: Schedule | None) -> None:
    """None ends the schedule."""
    if schedule is None:
        objects.delete(owner, SETTING, SCHEDULE)
        return
    if not schedule.every_days > 0:
        raise InvalidRequest("every_days: a number above 0", param="every_days")
    objects.put(owner, [StoredObject(SETTING, SCHEDULE, orjson.dumps(asdict(schedule)))])


def propose(
    objects: ObjectStore,
    home: Path,
    owner: str,
    model: str,
    *,
    key_id: str | None = None,
    max_jobs: int = MAX_JOBS,
    min_lines: int = MIN_LINES,
    hyperparameters: Mapping[str, Any] | None = None,
) -> TuningJob:
    """The job of a new proposal, charged to `key_id`. Raises InvalidRequest if there is too little feedback or nothing
    new, or if the project has `max_jobs` open jobs, and Conflict while another proposal of the project is trained."""
    found = list(judged_captures(objects, owner, read_reports(home, objects)))
    learned = [line for reply_id, line in found if not is_held_out(reply_id)]
    held_out = [line for reply_id, line in found if is_held_out(reply_id)]
    if len(found) < min_lines or any(len({line["label"] for line in part}) < 2 for part in (learned, held_out)):
        raise InvalidRequest(
            f"{len(found)} reported suggestions; a proposal needs {min_lines}, accepted and rejected ones; "
            "turn capture on and wait for more feedback"
        )
    digest = hashlib.sha256(orjson.dumps([model, learned, held_out])).hexdigest()
    _check_new(objects, owner, digest)
    JobStore(objects).check_quota(owner, max_jobs)
    method = {"type": "kto", "kto": {"hyperparameters": checked("kto", hyperparameters or {})}}
    reply = new_job(
        model,
        _upload(objects, owner, "learned.jsonl", learned),
        method,
        validation_file=_upload(objects, owner, "held_out.jsonl", held_out),
        suffix=SUFFIX,
        metadata={DIGEST: digest},
    )
    job = TuningJob(owner, reply, key_id, facts={PROPOSAL: True})
    JobStore(objects).create(job)
    return job


def is_held_out(reply_id: str) -> bool:
    """The same for every proposal, so that no held-out suggestion was ever learned."""
    return hashlib.sha256(reply_id.encode()).digest()[0] % HELD_OUT == 0


def _check_new(objects: ObjectStore, owner: str, digest: str) -> None:
    for job in proposals_of(objects, owner):
        if job.status not in ENDED:
            raise Conflict(f"the proposal {job.id} is not trained yet")
        if (job.reply["metadata"] or {}).get(DIGEST) == digest and job.status != "failed":
            raise InvalidRequest(f"no feedback is new since the proposal {job.id}")


def proposals_of(objects: ObjectStore, owner: str) -> list[TuningJob]:
    """The proposals of a project, newest first."""
    jobs, after = list[TuningJob](), ""
    while found := objects.find(owner, JOB, after=after, limit=100, is_descending=True):
        jobs += [job for each in found if (job := read_job(owner, each)).facts.get(PROPOSAL)]
        after = found[-1].id
    return jobs


def _upload(objects: ObjectStore, owner: str, name: str, lines: Sequence[Line]) -> str:
    content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    reply = describe(name, "fine-tune", len(content))
    write_file(objects, owner, reply, BytesIO(content))
    return str(reply["id"])


def propose_due(objects: ObjectStore, home: Path, models: Collection[str], max_jobs: int = MAX_JOBS) -> list[TuningJob]:
    """Makes the proposals of all projects that are due, for models of this server."""
    from quicksilver.accounts.objects import ObjectScan

    made = []
    for owner, stored in ObjectScan(objects).all(SETTING):
        if stored.id != SCHEDULE:
            continue
        schedule = Schedule(**orjson.loads(stored.body))
        last = next((job.reply["created_at"] for job in proposals_of(objects, owner)), 0)
        if schedule.model not in models or time.time() < last + schedule.every_days * DAY_S:
            continue
        try:
            key_id = schedule.key_id
            made.append(propose(objects, home, owner, schedule.model, key_id=key_id, max_jobs=max_jobs))
        except (InvalidRequest, Conflict) as error:
            log.info("no proposal was made: %s", error.message)
    return made


def accept(objects: ObjectStore, owner: str, job_id: str) -> str:
    """Serves the model of a proposal from now on; its name. Raises NotFound and Conflict."""
    job = JobStore(objects).get(owner, job_id)
    if job is None:
        raise NotFound("There is no fine-tuning job with this id.")
    name = tuned_name(job.reply["model"], job.reply["user_provided_suffix"], job.id)
    model = find_model(objects, owner, name)
    if job.status != "proposed" or model is None:
        raise Conflict(f"The job is {job.status}; only a proposal whose model exists can be accepted.")
    body = orjson.dumps(asdict(replace(model, is_proposed=False)))
    objects.update(owner, MODEL, name, lambda stored: replace(stored, body=body))
    reply = {**job.reply, "status": "succeeded", "fine_tuned_model": name}
    objects.update(owner, JOB, job.id, lambda stored: replace(stored, body=replace(job, reply=reply).body()))
    return name
