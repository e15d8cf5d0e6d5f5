"""/v1/fine_tuning/jobs: created, listed, paused, resumed, cancelled and refused; visible to its project alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from quicksilver.tuning.jobs import JobStore, TuningJob, read_job
from tests.server.conftest import Served
from tests.server.endpoints.files.test_route import upload
from tests.support.bank import Bank
from tests.support.tuning import chat_lines

JOBS = "/v1/fine_tuning/jobs"
Headers = dict[str, str] | None


async def data_file(served: Served, headers: Headers = None, purpose: str = "fine-tune") -> str:
    response = await upload(served, chat_lines(), data={"purpose": purpose}, headers=headers)
    return str(response.json()["id"])


async def create(served: Served, headers: Headers = None, **fields: Any) -> httpx.Response:
    file = fields.pop("training_file", None) or await data_file(served, headers)
    return await served.post(JOBS, {"model": "nano", "training_file": file, **fields}, headers)


async def made(served: Served, headers: Headers = None, **fields: Any) -> dict[str, Any]:
    response = await create(served, headers, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_job_is_created_in_openais_form(served: Served) -> None:
    job = await made(served, suffix="mine", seed=7, metadata={"a": "b"})
    assert job["id"].startswith("ftjob-")
    assert (job["object"], job["status"], job["model"]) == ("fine_tuning.job", "validating_files", "nano")
    assert (job["seed"], job["metadata"], job["user_provided_suffix"]) == (7, {"a": "b"}, "mine")
    auto = {"n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": "auto", "rank": "auto"}
    assert job["hyperparameters"] == auto
    assert job["method"] == {"type": "supervised", "supervised": {"hyperparameters": auto}}
    assert (await served.get(f"{JOBS}/{job['id']}")).json() == job
    events = (await served.get(f"{JOBS}/{job['id']}/events")).json()["data"]
    assert [event["object"] for event in events] == ["fine_tuning.job.event"]
    assert (await served.get(f"{JOBS}/{job['id']}/checkpoints")).json()["data"] == []


async def test_an_alias_selects_the_model_that_is_tuned(served: Served) -> None:
    assert (await made(served, model="mercury-2"))["model"] == "nano"


@pytest.mark.parametrize("method", ["supervised", "dpo", "kto"])
async def test_hyperparameters_are_kept(served: Served, method: str) -> None:
    given = {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.5}
    job = await made(served, method={"type": method, method: {"hyperparameters": given}})
    assert job["method"][method]["hyperparameters"].items() >= given.items()
    assert (job["hyperparameters"].get("beta") == "auto") == (method != "supervised")


async def test_hyperparameters_may_come_in_their_older_place(served: Served) -> None:
    assert (await made(served, hyperparameters={"n_epochs": 3}))["hyperparameters"]["n_epochs"] == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": 51}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"batch_size": 257}}, "hyperparameters.batch_size"),
        ({"hyperparameters": {"learning_rate_multiplier": 0}}, "hyperparameters.learning_rate_multiplier"),
        ({"hyperparameters": {"rank": 65}}, "hyperparameters.rank"),
        ({"hyperparameters": {"beta": 0.1}}, "hyperparameters.beta"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"suffix": "a b"}, "suffix"),
        ({"suffix": "../up"}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"training_file": "file-none"}, "training_file"),
        ({"validation_file": "file-none"}, "validation_file"),
        ({"integrations": [{"type": "wandb"}]}, "integrations"),
    ],
)
async def test_a_bad_job_is_refused_with_the_field(served: Served, fields: dict[str, Any], param: str) -> None:
    response = await create(served, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


async def test_a_file_of_another_purpose_and_an_unknown_model_are_refused(served: Served) -> None:
    assert (await create(served, training_file=await data_file(served, purpose="batch"))).status_code == 400
    assert (await create(served, model="unknown")).status_code == 404
    served.configure(tunes=False)
    assert (await create(served)).json()["error"]["code"] == "not_supported"


async def test_jobs_are_listed_in_pages(served: Served) -> None:
    ids = [(await made(served))["id"] for _ in range(3)]
    page = (await served.get(f"{JOBS}?limit=2")).json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == (ids[:0:-1], True)
    rest = (await served.get(f"{JOBS}?limit=2&after={page['last_id']}")).json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == (ids[:1], False)


async def test_jobs_are_listed_by_their_metadata(served: Served) -> None:
    bare = (await made(served))["id"]
    first = (await made(served, metadata={"team": "a", "run": "1"}))["id"]
    second = (await made(served, metadata={"team": "a"}))["id"]

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in (await served.get(f"{JOBS}?{query}")).json()["data"]]

    assert await listed("metadata[team]=a") == [second, first]
    assert await listed("metadata[team]=a&metadata[run]=1") == [first]
    assert await listed("metadata[team]=b") == []
    assert await listed("metadata=null") == [bare]
    assert await listed("") == [second, first, bare]


async def test_a_job_is_paused_resumed_and_cancelled(served: Served) -> None:
    place = f"{JOBS}/{(await made(served))['id']}"

    async def verb(name: str) -> tuple[int, str]:
        response = await served.post(f"{place}/{name}", {})
        return response.status_code, str(response.json().get("status"))

    assert await verb("resume") == (409, "None")
    assert await verb("pause") == (200, "paused")
    assert await verb("pause") == (409, "None")
    assert await verb("resume") == (200, "queued")
    assert await verb("cancel") == (200, "cancelled")
    assert await verb("cancel") == await verb("resume") == (409, "None")
    events = (await served.get(f"{place}/events?order=asc")).json()["data"]
    assert [event["message"].split(" ")[-1] for event in events[1:]] == ["paused.", "resumed.", "cancelled."]


async def test_a_trainer_loses_a_job_that_is_paused(served: Served) -> None:
    job = await made(served)

    def claim(store: Any) -> TuningJob:
        found = JobStore(store).claim("trainer", ("nano",))
        assert found is not None
        return found

    claimed = await served.services.storage.run(claim)
    assert await served.services.storage.run(lambda store: JobStore(store).renew(claimed, "trainer"))
    await served.post(f"{JOBS}/{job['id']}/pause", {})
    assert not await served.services.storage.run(lambda store: JobStore(store).renew(claimed, "trainer"))
    saved = await served.services.storage.run(lambda store: JobStore(store).save(claimed, "trainer", status="running"))
    assert saved is None
    stored = await served.services.storage.get("", "fine_tuning_job", job["id"])
    assert read_job("", stored).status == "paused"


async def test_a_project_has_few_open_jobs(served: Served) -> None:
    served.configure(tuning_jobs=1)
    first = await made(served)
    refused = await create(served)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quota_exceeded")
    await served.post(f"{JOBS}/{first['id']}/cancel", {})
    assert (await create(served)).status_code == 200


async def test_another_project_finds_neither_job_nor_file(bank: Bank) -> None:
    mine, other = await bank.key(), await bank.key()
    file = await data_file(bank.served, mine)
    job = await made(bank.served, mine, training_file=file)
    assert (await bank.served.get(f"{JOBS}/{job['id']}", mine)).status_code == 200
    for path in ("", "/events", "/checkpoints"):
        assert (await bank.served.get(f"{JOBS}/{job['id']}{path}", other)).status_code == 404
    for verb in ("cancel", "pause", "resume"):
        assert (await bank.served.post(f"{JOBS}/{job['id']}/{verb}", {}, other)).status_code == 404
    assert (await bank.served.get(JOBS, other)).json()["data"] == []
    assert (await create(bank.served, other, training_file=file)).status_code == 400


async def test_a_key_without_the_model_or_credits_is_refused(bank: Bank) -> None:
    limited = await bank.key(models=frozenset({"other"}))
    assert (await create(bank.served, limited)).status_code == 403
    poor = await bank.key(credits=0)
    assert (await create(bank.served, poor)).status_code in (402, 429)
