"""Jobs from their files to a registered model: what is learned, measured, refused, paused and continued."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quicksilver.accounts.stored_files import read_pieces
from quicksilver.adapters import AdapterRef
from quicksilver.errors import LedgerUnavailable
from quicksilver.hub.adapter_files import find_adapter
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import load_adapter, merge_skill
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.files.peft import CONFIG_FILE, WEIGHTS_FILE
from quicksilver.model.transformer import Transformer
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.corpus import OverlapCheck
from quicksilver.training.formats import Formatter
from quicksilver.training.network import Network, as_written
from quicksilver.training.service import trainer as trainer_module
from quicksilver.training.service.examples import read_examples
from quicksilver.training.service.lease import Signals
from quicksilver.training.service.measure import losses
from quicksilver.training.service.results import Results
from quicksilver.training.service.tasks import LoraRows, StepPlan
from quicksilver.training.service.trainer import Trainer
from quicksilver.tuning.jobs import JOB, TuningJob
from quicksilver.tuning.models import adapter_file, find_model, list_models
from quicksilver.tuning.proposing import propose
from tests.support.feedback import add_feedback
from tests.support.row_adapters import random_adapter, saved
from tests.support.tiny import decode_params, generate, tiny_engine
from tests.support.tuning import CONFIG as CONFIG_OF_BASE
from tests.support.tuning import Shop, chat_lines, stored_adapter

SHORT = {"n_epochs": 2, "batch_size": 5, "rank": 4}


def valid_loss(model: Transformer, base: ModelFiles) -> float:
    """The mean loss of the validation lines."""
    formatter = Formatter(Tokenizer.load(base.weights), 256)
    examples = read_examples(chat_lines(10), "supervised", formatter, OverlapCheck(()), "training_file")
    rows = LoraRows(Network(model, as_written), examples, StepPlan(10, 1, 1, 0), 1)
    return losses(rows, [example.document for example in examples], None)[0]


def test_a_job_is_measured_before_and_after(shop: Shop, base: ModelFiles) -> None:
    chosen = {**SHORT, "n_epochs": 5, "learning_rate_multiplier": 20}
    job = shop.create(chat_lines(), hyperparameters=chosen, validation=chat_lines(10), suffix="colours")
    shop.run()
    reply = shop.reply(job)
    assert reply["status"] == "succeeded", reply["error"]
    name = reply["fine_tuned_model"]
    assert name.startswith("ft:toy:colours:")
    before, after = (reply["quicksilver"][key] for key in ("before", "after"))
    assert after["valid_loss"] < 0.8 * before["valid_loss"]
    assert after["valid_mean_token_accuracy"] > before["valid_mean_token_accuracy"]
    assert min(before["tokens_per_round"], after["tokens_per_round"]) >= 1
    # Drafts of an untrained canvas adapter cannot become worse.
    assert "canvas_refresh" not in reply["quicksilver"]
    assert load_adapter(stored_adapter(shop, name)).canvas is None
    # The figures are those of the adapter that was stored.
    merged = load_model(base.weights)
    merge_skill(merged, load_adapter(stored_adapter(shop, name)))
    assert valid_loss(merged, base) == pytest.approx(after["valid_loss"], rel=0.01)
    assert find_model(shop.objects, "another project", name) is None


def test_an_engine_serves_the_stored_adapter_as_if_it_were_merged(shop: Shop, base: ModelFiles) -> None:
    job = shop.create(chat_lines(), hyperparameters={**SHORT, "learning_rate_multiplier": 50})
    shop.run()
    model = find_model(shop.objects, "", shop.reply(job)["fine_tuned_model"])
    assert model is not None
    path = adapter_file(shop.objects, "", model, shop.settings.home / "adapters")
    ref = AdapterRef(model.sha256, str(path))
    assert ref == find_adapter(path)
    merged = load_model(base.weights)
    merge_skill(merged, load_adapter(path))
    prompt, params = tuple(Tokenizer.load(base.weights).encode("colour 3?")), decode_params("ar", max_new_tokens=8)
    plain = tiny_engine(model=load_model(base.weights))
    tuned = generate(plain, prompt, params, adapter=ref)
    assert tuned == generate(tiny_engine(model=merged), prompt, params)
    assert tuned != generate(plain, prompt, params)


def test_a_model_that_is_an_adapter_is_tuned_with_its_adapter(shop: Shop, base: ModelFiles) -> None:
    """The figures before training are those of the base with the adapter."""
    skill = saved(shop.settings.home, random_adapter(1, config=CONFIG_OF_BASE, std=0.6), "sql")
    models = {**shop.settings.models, "toy:sql": replace(base, name="toy:sql")}
    shop.settings = replace(shop.settings, models=models, adapters={"toy:sql": ("toy", Path(skill.path))})
    job = shop.create(chat_lines(), hyperparameters=SHORT, validation=chat_lines(10), model="toy:sql")
    shop.run()
    reply = shop.reply(job)
    assert reply["status"] == "succeeded", reply["error"]
    merged = load_model(base.weights)
    merge_skill(merged, load_adapter(Path(skill.path)))
    assert valid_loss(merged, base) == pytest.approx(reply["quicksilver"]["before"]["valid_loss"], rel=1e-3)
    assert valid_loss(load_model(base.weights), base) != pytest.approx(valid_loss(merged, base), rel=0.01)
    # Served: the adapter of the name and the tuned one together.
    merge_skill(merged, load_adapter(stored_adapter(shop, reply["fine_tuned_model"])))
    assert valid_loss(merged, base) == pytest.approx(reply["quicksilver"]["after"]["valid_loss"], rel=0.01)


def test_events_checkpoints_and_result_files_of_a_job(shop: Shop) -> None:
    job = shop.create(chat_lines(), hyperparameters=SHORT)
    shop.run()
    reply = shop.reply(job)
    assert reply["hyperparameters"] == {**SHORT, "learning_rate_multiplier": 1.0}
    tokens = reply["trained_tokens"]
    assert tokens > 0
    assert tokens % 2 == 0
    steps = [event["data"]["step"] for event in shop.events(job) if event["id"].rpartition("-")[0].endswith("step")]
    assert steps == list(range(1, 9))
    checkpoints = [json.loads(each.body) for each in shop.objects.find("", "fine_tuning_checkpoint", job.id) or []]
    assert [each["step_number"] for each in checkpoints] == [4, 8]
    names = [each["fine_tuned_model_checkpoint"] for each in checkpoints]
    assert names == [f"{reply['fine_tuned_model']}:ckpt-step-4", reply["fine_tuned_model"]]
    assert sorted(model.id for model in list_models(shop.objects, "")) == sorted(names)
    metrics, archive = (b"".join(read_pieces(shop.objects, "", file)) for file in reply["result_files"])
    assert metrics.startswith(b"step,train_loss")
    assert len(metrics.splitlines()) == 9
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        assert file.namelist() == [CONFIG_FILE, WEIGHTS_FILE]
    assert not (shop.settings.home / "fine_tuning" / job.id).exists()


def test_equal_jobs_give_equal_adapters_and_another_seed_another_one(shop: Shop) -> None:
    jobs = [shop.create(chat_lines(), hyperparameters=SHORT, seed=seed) for seed in (1, 1, 2)]
    for _ in jobs:
        shop.run()
    first, second, third = (shop.reply(job)["quicksilver"]["adapter_sha256"] for job in jobs)
    assert first == second != third


class StopAfter:
    """Tells the trainer to stop after some reports, and counts them."""

    def __init__(self, *numbers: int) -> None:
        self.signals, self._numbers, self.num = Signals(), numbers, 0

    def __call__(self, *_: Any) -> None:
        self.num += 1
        if self.num in self._numbers:
            self.signals.is_stopping.set()


def test_an_interrupted_job_ends_in_the_same_bytes(shop: Shop) -> None:
    whole = shop.create(chat_lines(), hyperparameters=SHORT)
    shop.run()
    cut = shop.create(chat_lines(), hyperparameters=SHORT)
    for number in (1, 2, 3):
        stop = StopAfter(number)
        shop.run(f"process {number}", signals=stop.signals, watch=stop)
        assert shop.reply(cut)["status"] == "running"
    shop.run("last")
    digests = [shop.reply(job)["quicksilver"]["adapter_sha256"] for job in (whole, cut)]
    assert digests[0] == digests[1]
    steps = [event["data"]["step"] for event in shop.events(cut) if "-step-" in event["id"]]
    assert sorted(steps) == list(range(1, 9))


def test_a_continued_job_has_the_threads_of_its_start(shop: Shop) -> None:
    whole, cut = (shop.create(chat_lines(), hyperparameters=SHORT) for _ in range(2))
    shop.run()
    stop = StopAfter(3)
    shop.run("first", signals=stop.signals, watch=stop)
    shop.settings = replace(shop.settings, threads=2)
    shop.run("last")
    assert torch.get_num_threads() == 1
    digests = [shop.reply(job)["quicksilver"]["adapter_sha256"] for job in (whole, cut)]
    assert digests[0] == digests[1]


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(shop: Shop, job: TuningJob, **changes: Any) -> None:
    """A run whose trainer is killed; its lease has run out afterwards."""
    with pytest.raises(Killed):
        shop.run(**changes)
    shop.objects.update("", JOB, job.id, lambda stored: replace(stored, leased_by="", leased_until=0))


def test_a_job_that_kills_its_trainer_fails_and_the_next_one_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    poison, other = (shop.create(chat_lines(), hyperparameters=SHORT) for _ in range(2))

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "make_task", kill)
        for _ in range(3):
            killed(shop, poison)
    shop.run()
    assert shop.reply(poison)["status"] == "failed"
    assert shop.reply(poison)["error"]["code"] == "trainer_lost"
    shop.run()
    assert shop.reply(other)["status"] == "succeeded"


def test_a_job_that_advances_is_continued_any_number_of_times(base: ModelFiles, tmp_path: Path) -> None:
    shop = Shop(tmp_path, base, checkpoint_s=0.0)
    job = shop.create(chat_lines(), hyperparameters=SHORT)
    for _ in range(6):
        reports = iter(range(2))

        def watch(*_: Any, reports: Iterator[int] = reports) -> None:
            if next(reports):
                raise Killed

        killed(shop, job, watch=watch)
    shop.run()
    assert shop.reply(job)["status"] == "succeeded"


def test_a_store_that_does_not_answer_interrupts_the_job(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = (shop.create(chat_lines(), hyperparameters=SHORT) for _ in range(2))
    shop.run()
    trainer = Trainer(shop.jobs, shop.settings, "here")
    event = shop.jobs.event

    def unavailable(job: TuningJob, message: str, *args: Any, **fields: Any) -> None:
        if "-step-6" in f"-{fields.get('event_id')}":
            raise LedgerUnavailable("the database is down")
        event(job, message, *args, **fields)

    # More often than a trainer may be lost.
    for _ in range(5):
        job = shop.jobs.claim("here", shop.settings.models)
        assert job is not None
        with monkeypatch.context() as patch:
            patch.setattr(shop.jobs, "event", unavailable)
            with pytest.raises(LedgerUnavailable):
                trainer.run(job)
        assert shop.reply(cut)["status"] == "running"
        assert (shop.settings.home / "fine_tuning" / cut.id).exists()
        shop.objects.update("", JOB, cut.id, lambda stored: replace(stored, leased_by="", leased_until=0))
    shop.run()
    digests = [shop.reply(each)["quicksilver"]["adapter_sha256"] for each in (whole, cut)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_job_that_is_paused_or_cancelled_stops(shop: Shop, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.training.service.lease.RENEW_S", 0.01)
    job = shop.create(chat_lines(), hyperparameters={**SHORT, "n_epochs": 5})
    shop.run(watch=lambda *_: getattr(shop.jobs, verb)("", job.id) if shop.reply(job)["status"] == "running" else None)
    assert shop.reply(job)["status"] == {"pause": "paused", "cancel": "cancelled"}[verb]
    assert shop.jobs.claim("another", shop.settings.models) is None
    if verb == "pause":
        shop.jobs.resume("", job.id)
        monkeypatch.setattr(trainer_module, "NUM_REPORTS", 1)
        shop.run("another")
        assert shop.reply(job)["status"] == "succeeded"


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_job_that_ends_otherwise_while_it_is_registered_has_no_model(
    shop: Shop, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shop.create(chat_lines(), hyperparameters=SHORT)
    write_files = Results.write_files

    def end(results: Results, tensors: Any) -> list[str]:
        ids = write_files(results, tensors)
        if status == "failed":
            raise OSError("the disk is full")
        shop.jobs.cancel("", job.id)
        return ids

    monkeypatch.setattr(Results, "write_files", end)
    shop.run()
    assert shop.reply(job)["status"] == status
    assert [model.step for model in list_models(shop.objects, "")] == [4]
    checkpoints = [json.loads(each.body) for each in shop.objects.find("", "fine_tuning_checkpoint", job.id) or []]
    assert [each["step_number"] for each in checkpoints] == [4]
    assert shop.objects.ids("", "file", "") == [job.reply["training_file"]]
    assert not (shop.settings.home / "fine_tuning" / job.id).exists()


def test_training_waits_while_requests_wait(shop: Shop) -> None:
    import threading

    signals = Signals()
    signals.is_busy.set()
    job = shop.create(chat_lines(), hyperparameters=SHORT)
    thread = threading.Thread(target=shop.run, kwargs={"signals": signals})
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert not [event for event in shop.events(job) if event["type"] == "metrics"]
    signals.is_busy.clear()
    thread.join(60)
    assert shop.reply(job)["status"] == "succeeded"


def test_faults_of_the_data_are_events_and_the_error_of_the_job(shop: Shop) -> None:
    content = chat_lines(10) + b'{"messages": []}\nnot json\n'
    job = shop.create(content)
    shop.run()
    reply = shop.reply(job)
    assert reply["status"] == "failed"
    assert reply["error"]["code"] == "invalid_row"
    assert reply["error"]["param"] == "training_file"
    faults = [event["data"] for event in shop.events(job) if event["level"] == "error" and event["data"]]
    assert [(fault["line"], fault["code"]) for fault in faults] == [(11, "invalid_row"), (12, "invalid_jsonl")]


def test_bad_validation_data_names_its_file(shop: Shop) -> None:
    job = shop.create(chat_lines(), validation=b"x")
    shop.run()
    assert shop.reply(job)["error"]["param"] == "validation_file"


def test_data_of_an_evaluation_is_refused(base: ModelFiles, tmp_path: Path) -> None:
    import lzma

    words = " ".join(f"word{i}" for i in range(13))
    pack = tmp_path / "pack.jsonl.xz"
    pack.write_bytes(lzma.compress(json.dumps({"task": "t", "question": words}).encode()))
    shop = Shop(tmp_path, base, evals=pack)
    job = shop.create(chat_lines(10) + json.dumps({"text": words}).encode())
    shop.run()
    assert shop.reply(job)["error"]["code"] == "training_data_matches_eval"


def test_a_project_without_room_is_refused_before_training(base: ModelFiles, tmp_path: Path) -> None:
    shop = Shop(tmp_path, base, stored_bytes=50_000)
    job = shop.create(chat_lines(), hyperparameters={"rank": 64})
    shop.run()
    assert shop.reply(job)["error"]["code"] == "quota_exceeded"


def test_a_deleted_file_fails_the_job(shop: Shop) -> None:
    job = shop.create(chat_lines())
    shop.objects.delete("", "file", job.reply["training_file"])
    shop.run()
    assert shop.reply(job)["error"]["code"] == "file_not_found"


def test_preference_jobs_end(shop: Shop) -> None:
    pair = {"prompt": "a?", "chosen": "yes", "rejected": "no"}
    judged = [
        {"prompt": "a?", "completion": "yes", "label": True},
        {"prompt": "a?", "completion": "no", "label": False},
    ]
    for method, rows in (("dpo", [pair] * 10), ("kto", judged * 5)):
        job = shop.create(b"\n".join(json.dumps(row).encode() for row in rows), method, hyperparameters=SHORT)
        shop.run()
        assert shop.reply(job)["status"] == "succeeded", shop.reply(job)["error"]


def test_a_proposal_is_measured_on_held_out_feedback_and_not_served(shop: Shop) -> None:
    add_feedback(shop.objects, shop.settings.home, 100)
    chosen = {"n_epochs": 3, "batch_size": 10, "learning_rate_multiplier": 100, "rank": 4}
    job = propose(shop.objects, shop.settings.home, "", "toy", hyperparameters=chosen)
    shop.run()
    reply = shop.reply(job)
    assert (reply["status"], reply["fine_tuned_model"]) == ("proposed", None), reply["error"]
    (model,) = list_models(shop.objects, "")
    assert model.is_proposed
    before, after = (reply["quicksilver"][key]["selectivity"] for key in ("before", "after"))
    assert before["num"] == after["num"] >= 10
    assert len(after["curve"]) == 11
    # With a threshold that loses no accepted suggestion.
    assert after["all_accepted"]["accepted"] == before["all_accepted"]["accepted"]
    rise = after["all_accepted"]["accepted_of_shown"] / before["all_accepted"]["accepted_of_shown"]
    assert rise >= 1.2, (before, after)
    # At every threshold of the curve as many or more of the shown ones are accepted.
    for old, new in zip(before["curve"], after["curve"], strict=True):
        assert new["accepted"] >= old["accepted"]
