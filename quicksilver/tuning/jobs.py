"""JobStore: fine-tuning jobs with their events and checkpoints, as stored objects. Blocking.

States: validating_files -> queued -> running, then succeeded, proposed, failed or cancelled. A running job may be
paused and becomes queued again when it is resumed. One trainer process at a time holds the lease of an open job. A job
that is paused or cancelled is closed at once, so its trainer loses the lease at the next renewal and stops.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

JOB, EVENT, CHECKPOINT = "fine_tuning_job", "fine_tuning_event", "fine_tuning_checkpoint"
OPEN = ("validating_files", "queued", "running")
ENDED = ("succeeded", "proposed", "failed", "cancelled")
# Keys of `TuningJob.facts`. Starts of the job since its last checkpoint, pause or return of its lease:
ATTEMPTS = "attempts"
# The first step and the end of the newest span of steps that was charged. All steps before it were charged, too:
CHARGED = "charged"
# Tokens of each step of a canvas refresh, which adapts the canvas adapter to the tuned model after the training:
REFRESH_TOKENS = "refresh_tokens"
# The last step and its metrics, for the checkpoint of the last epoch:
LAST_EPOCH = "last_epoch"
# Whether the job is a proposal (`proposing.py`), whose model is served only after it was accepted:
PROPOSAL = "is_proposal"
# Jobs of one project that have not ended, where the configuration sets no other limit.
MAX_JOBS = 8
# A trainer renews its lease every second; a lease that is not renewed is taken over after LEASE_S.
LEASE_S, RENEW_S = 5, 1.0

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TuningJob:
    """`reply` is the job as clients read it."""

    owner: str
    reply: Reply
    # The key that is charged; None without accounts.
    key_id: str | None = None
    # What a resumed run must know: the number of threads, what was measured before training, attempts and charges.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.reply["id"])

    @property
    def status(self) -> str:
        return str(self.reply["status"])

    @property
    def method(self) -> str:
        return str(self.reply["method"]["type"])

    def body(self) -> bytes:
        return orjson.dumps({"reply": self.reply, "key_id": self.key_id, "facts": dict(self.facts)})


def read_job(owner: str, stored: StoredObject) -> TuningJob:
    return TuningJob(owner, **orjson.loads(stored.body))


def new_job(model: str, training_file: str, method: Mapping[str, Any], **fields: Any) -> Reply:
    """A job in OpenAI's form that waits for its validation."""
    return {
        "id": f"ftjob-{uuid.uuid4().hex[:24]}",
        "object": "fine_tuning.job",
        "created_at": int(time.time()),
        "error": None,
        "fine_tuned_model": None,
        "finished_at": None,
        "hyperparameters": dict(method.get(method["type"], {}).get("hyperparameters", {})),
        "model": model,
        "organization_id": fields.get("organization_id", ""),
        "result_files": [],
        "seed": fields.get("seed", 0),
        "status": "validating_files",
        "trained_tokens": None,
        "training_file": training_file,
        "validation_file": fields.get("validation_file"),
        "estimated_finish": None,
        "integrations": [],
        "metadata": fields.get("metadata"),
        "method": dict(method),
        "user_provided_suffix": fields.get("suffix"),
        "quicksilver": {},
    }


class JobStore:
    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def create(self, job: TuningJob, process: str = "") -> None:
        """With `process`, its lease is held from the start."""
        until = int(time.time()) + LEASE_S if process else 0
        created = int(job.reply["created_at"])
        stored = StoredObject(JOB, job.id, job.body(), "", created, True, process, until)
        self.objects.put(job.owner, [stored])
        self.event(job, "Created the job; its files are validated next.", event_id="created")

    def get(self, owner: str, job_id: str) -> TuningJob | None:
        stored = self.objects.get(owner, JOB, job_id)
        return None if stored is None else read_job(owner, stored)

    def num_open(self, owner: str) -> int:
        """Jobs that have not ended, paused ones included."""
        count, after = 0, ""
        while found := self.objects.find(owner, JOB, after=after, limit=100):
            count += sum(read_job(owner, each).status not in ENDED for each in found)
            after = found[-1].id
        return count

    def check_quota(self, owner: str, max_jobs: int) -> None:
        """Raises InvalidRequest if the project may have no further open job."""
        if self.num_open(owner) >= max_jobs:
            message = f"This project has {max_jobs} jobs that have not ended, which is the limit."
            raise InvalidRequest(message, code="quota_exceeded")

    def cancel(self, owner: str, job_id: str) -> TuningJob | None:
        return self._close(owner, job_id, "cancelled", "The job was cancelled.", (*OPEN, "paused"))

    def pause(self, owner: str, job_id: str) -> TuningJob | None:
        return self._close(owner, job_id, "paused", "The job was paused.", OPEN)

    def resume(self, owner: str, job_id: str) -> TuningJob | None:
        job = self._change(owner, job_id, ("paused",), lambda job: _again(_with(job, status="queued")), is_open=True)
        if job is not None:
            self.event(job, "The job was resumed.")
        return job

    def claim(self, process: str, models: Collection[str]) -> TuningJob | None:
        """The oldest open job of one of these models that no trainer works on; `process` now holds its lease."""
        for job in self._claimable(models):
            if (held := self._hold(job, process)) is not None:
                return held
        return None

    def has_claimable(self, models: Collection[str]) -> bool:
        """Whether `claim` would find a job."""
        return next(self._claimable(models), None) is not None

    def _claimable(self, models: Collection[str]) -> Iterator[TuningJob]:
        """Jobs of other models are left to the servers that have them."""
        from quicksilver.accounts.objects import ObjectScan

        jobs = (read_job(owner, stored) for owner, stored in ObjectScan(self.objects).free(JOB))
        return (job for job in jobs if job.reply["model"] in models)

    def _hold(self, job: TuningJob, process: str) -> TuningJob | None:
        """The job as it is stored, whose lease `process` now holds; None if another process was faster."""
        now, held = int(time.time()), False

        def change(stored: StoredObject) -> StoredObject | None:
            nonlocal held
            held = stored.is_open and stored.leased_until < now
            return replace(stored, leased_by=process, leased_until=now + LEASE_S) if held else None

        stored = self.objects.update(job.owner, JOB, job.id, change)
        return read_job(job.owner, stored) if stored is not None and held else None

    def take(self, owner: str, matches: Callable[[TuningJob], bool], process: str) -> TuningJob | None:
        """The newest job of a project that matches, has not ended and is not leased; `process` now holds its lease."""
        after = ""
        while found := self.objects.find(owner, JOB, after=after, limit=100, is_descending=True):
            for stored in found:
                job = read_job(owner, stored)
                if job.status not in ENDED and matches(job) and self._take(job, process):
                    return self.get(owner, job.id)
            after = found[-1].id
        return None

    def _take(self, job: TuningJob, process: str) -> bool:
        now = int(time.time())

        def change(stored: StoredObject) -> StoredObject | None:
            current = read_job(job.owner, stored)
            if current.status in ENDED or stored.leased_until >= now:
                return None
            status = "queued" if current.status == "paused" else current.status
            body = _again(_with(current, status=status)).body()
            return replace(stored, body=body, is_open=True, leased_by=process, leased_until=now + LEASE_S)

        taken = self.objects.update(job.owner, JOB, job.id, change)
        return taken is not None and taken.leased_by == process

    def renew(self, job: TuningJob, process: str) -> bool:
        return self.objects.renew(job.owner, JOB, job.id, process, LEASE_S)

    def release(self, job: TuningJob, process: str) -> None:
        """Gives the lease back, so that another process can continue at once. The attempt does not count."""

        def change(stored: StoredObject) -> StoredObject | None:
            if stored.leased_by != process:
                return None
            return replace(stored, body=_again(read_job(job.owner, stored)).body(), leased_by="", leased_until=0)

        self.objects.update(job.owner, JOB, job.id, change)

    def save(self, job: TuningJob, process: str, *, is_open: bool = True, **changes: Any) -> TuningJob | None:
        """Writes changed fields of the reply (and `facts`) if `process` holds the lease; None if it does not."""
        saved: TuningJob | None = None
        facts = changes.pop("facts", job.facts)

        def change(stored: StoredObject) -> StoredObject | None:
            nonlocal saved
            if not stored.is_open or stored.leased_by != process:
                return None
            # Charges are recorded by `begin_charge` alone, also by a process that has lost the lease.
            charged = {CHARGED: span} if (span := read_job(job.owner, stored).facts.get(CHARGED)) else {}
            saved = replace(_with(job, **changes), facts={**facts, **charged})
            lease = (process, int(time.time()) + LEASE_S) if is_open else ("", 0)
            return replace(stored, body=saved.body(), is_open=is_open, leased_by=lease[0], leased_until=lease[1])

        self.objects.update(job.owner, JOB, job.id, change)
        return saved

    def begin_charge(self, job: TuningJob, step: int) -> tuple[int, int] | None:
        """The span of steps before `step` that was not charged yet; None if all were. It is recorded before it is
        charged, so a run that was killed in between finds it in the facts and charges it under the same name."""
        span: tuple[int, int] | None = None

        def change(stored: StoredObject) -> StoredObject | None:
            nonlocal span
            current = read_job(job.owner, stored)
            end = current.facts.get(CHARGED, (0, 0))[1]
            if step <= end:
                return None
            span = (end, step)
            return replace(stored, body=replace(current, facts={**current.facts, CHARGED: span}).body())

        self.objects.update(job.owner, JOB, job.id, change)
        return span

    def event(
        self, job: TuningJob, message: str, level: str = "info", data: Any = None, event_id: str | None = None
    ) -> None:
        """Adds an event. One with an `event_id` is added once, also where a resumed run reports it again."""
        number = f"ftevent-{job.id.removeprefix('ftjob-')}-{event_id or uuid.uuid4().hex[:12]}"
        event = {
            "id": number,
            "object": "fine_tuning.job.event",
            "created_at": int(time.time()),
            "level": level,
            "message": message,
            "type": "metrics" if data and "step" in data else "message",
            "data": data or {},
        }
        self.objects.add(job.owner, StoredObject(EVENT, number, orjson.dumps(event), job.id))

    def checkpoint(self, job: TuningJob, step: int, metrics: Mapping[str, Any], model: str | None) -> None:
        """Adds the checkpoint of a step, once."""
        number = f"ftckpt-{job.id.removeprefix('ftjob-')}-{step}"
        checkpoint = {
            "id": number,
            "object": "fine_tuning.job.checkpoint",
            "created_at": int(time.time()),
            "fine_tuned_model_checkpoint": model,
            "fine_tuning_job_id": job.id,
            "metrics": {"step": step, **metrics},
            "step_number": step,
        }
        self.objects.add(job.owner, StoredObject(CHECKPOINT, number, orjson.dumps(checkpoint), job.id))

    def _close(self, owner: str, job_id: str, status: str, message: str, allowed: tuple[str, ...]) -> TuningJob | None:
        finished = int(time.time()) if status in ENDED else None
        changes = {"status": status, "finished_at": finished, "estimated_finish": None}
        job = self._change(owner, job_id, allowed, lambda job: _with(job, **changes), is_open=False)
        if job is not None:
            self.event(job, message)
        return job

    def _change(
        self, owner: str, job_id: str, allowed: tuple[str, ...], change: Callable[[TuningJob], TuningJob], is_open: bool
    ) -> TuningJob | None:
        """None if there is no such job. Raises Conflict if its status is not one of `allowed`."""

        def changed(stored: StoredObject) -> StoredObject | None:
            job = read_job(owner, stored)
            if job.status not in allowed:
                raise Conflict(f"The job is {job.status}.", param="fine_tuning_job_id")
            return replace(stored, body=change(job).body(), is_open=is_open, leased_by="", leased_until=0)

        stored = self.objects.update(owner, JOB, job_id, changed)
        return None if stored is None else read_job(owner, stored)


def _with(job: TuningJob, **changes: Any) -> TuningJob:
    return replace(job, reply={**job.reply, **changes})


def _again(job: TuningJob) -> TuningJob:
    """The job without failed attempts."""
    return replace(job, facts={**job.facts, ATTEMPTS: 0})
