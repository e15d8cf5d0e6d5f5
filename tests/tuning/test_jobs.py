"""JobStore: leases, takeovers, transitions and events that are added once."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.accounts import objects as objects_module
from quicksilver.accounts.objects import ObjectStore
from quicksilver.errors import Conflict
from quicksilver.tuning import jobs as jobs_module
from quicksilver.tuning.jobs import EVENT, LEASE_S, JobStore, TuningJob, new_job

MODELS = ("nano",)
METHOD = {"type": "supervised", "supervised": {"hyperparameters": {}}}


class Clock:
    """The time of leases, which the tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(jobs_module.time, "time", lambda: self.now)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(monkeypatch)
    objects._clock = clock
    return clock


def add(objects: ObjectStore, **fields: Any) -> TuningJob:
    job = TuningJob("me", new_job(fields.pop("model", "nano"), "file-1", METHOD, **fields), "key")
    JobStore(objects).create(job)
    return job


def test_one_process_holds_a_job_until_its_lease_runs_out(objects: ObjectStore, clock: Clock) -> None:
    jobs, job = JobStore(objects), add(objects)
    claimed = jobs.claim("a", MODELS)
    assert claimed is not None
    assert (claimed.id, claimed.key_id, claimed.owner) == (job.id, "key", "me")
    assert jobs.claim("b", MODELS) is None
    clock.now += LEASE_S
    assert jobs.renew(job, "a")
    clock.now += LEASE_S
    assert jobs.claim("b", MODELS) is None
    clock.now += 1
    assert jobs.claim("b", MODELS) is not None
    assert not jobs.renew(job, "a")
    assert jobs.save(claimed, "a", status="running") is None
    saved = jobs.save(claimed, "b", status="running")
    assert saved is not None
    assert saved.status == "running"


def test_a_job_of_another_model_is_left_to_a_server_that_has_it(objects: ObjectStore) -> None:
    jobs = JobStore(objects)
    other, job = add(objects, model="coder"), add(objects)
    assert jobs.has_claimable(MODELS)
    claimed = jobs.claim("a", MODELS)
    assert claimed is not None
    assert claimed.id == job.id
    assert not jobs.has_claimable(MODELS)
    assert jobs.claim("a", MODELS) is None
    found = jobs.claim("b", ("coder",))
    assert found is not None
    assert found.id == other.id


def test_a_released_job_is_claimed_at_once(objects: ObjectStore, clock: Clock) -> None:
    jobs, job = JobStore(objects), add(objects)
    jobs.claim("a", MODELS)
    jobs.release(job, "another")
    assert jobs.claim("b", MODELS) is None
    jobs.release(job, "a")
    assert jobs.claim("b", MODELS) is not None


def test_a_job_that_ended_is_not_claimed_and_cannot_change(objects: ObjectStore, clock: Clock) -> None:
    jobs, job = JobStore(objects), add(objects)
    claimed = jobs.claim("a", MODELS)
    assert claimed is not None
    jobs.save(claimed, "a", is_open=False, status="succeeded")
    clock.now += 100
    assert jobs.claim("b", MODELS) is None
    for verb in (jobs.cancel, jobs.pause, jobs.resume):
        with pytest.raises(Conflict):
            verb("me", job.id)
    assert jobs.cancel("another", job.id) is None


def test_an_interrupted_job_is_taken_over_by_what_it_trains(objects: ObjectStore, clock: Clock) -> None:
    jobs = JobStore(objects)
    job, _ = add(objects, metadata={"digest": "1"}), add(objects, metadata={"digest": "2"})

    def matches(each: TuningJob) -> bool:
        return bool(each.reply["metadata"]["digest"] == "1")

    jobs.pause("me", job.id)
    taken = jobs.take("me", matches, "a")
    assert taken is not None
    assert (taken.id, taken.status) == (job.id, "queued")
    assert jobs.take("me", matches, "b") is None
    jobs.cancel("me", job.id)
    assert jobs.take("me", matches, "b") is None


def test_open_jobs_are_counted(objects: ObjectStore) -> None:
    jobs = JobStore(objects)
    made = [add(objects) for _ in range(3)]
    jobs.pause("me", made[0].id)
    jobs.cancel("me", made[1].id)
    assert (jobs.num_open("me"), jobs.num_open("another")) == (2, 0)


def test_an_event_with_an_id_is_added_once(objects: ObjectStore) -> None:
    jobs, job = JobStore(objects), add(objects)
    for _ in range(2):
        jobs.event(job, "step", data={"step": 1}, event_id="step-1")
        jobs.event(job, "note")
    assert objects.count("me", EVENT, job.id) == 4


def test_the_store_changes_an_object_in_one_transaction(objects: ObjectStore) -> None:
    assert objects_module.ObjectStore.update(objects, "me", "kind", "none", lambda stored: stored) is None
