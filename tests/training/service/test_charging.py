"""Charges of fine-tuning jobs: each trained token once, through pauses, cancellation and interruptions."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from quicksilver.accounts.service import AdminService
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.tuning.proposing import propose
from tests.accounts.test_training_charges import new_key, spent
from tests.support.feedback import add_feedback
from tests.support.tuning import Shop, chat_lines
from tests.training.service.test_trainer import SHORT, Killed, StopAfter, killed


def test_trained_tokens_are_charged_once_for_each_epoch(paid: tuple[Shop, AdminService, TrainingCharges]) -> None:
    shop, admin, charges = paid
    org, key = new_key(admin)
    job = shop.create(chat_lines(), hyperparameters=SHORT, key_id=key)
    stop = StopAfter(6)
    shop.run("first", charges=charges, signals=stop.signals, watch=stop)
    assert spent(admin, org) > 0
    # A trainer that was killed before its checkpoint trains the same steps again.
    shutil.rmtree(shop.settings.home / "fine_tuning")
    shop.run("second", charges=charges)
    assert spent(admin, org) == shop.reply(job)["trained_tokens"]


def test_a_proposal_is_charged_like_a_job(paid: tuple[Shop, AdminService, TrainingCharges]) -> None:
    shop, admin, charges = paid
    org, key = new_key(admin)
    add_feedback(shop.objects, shop.settings.home, 60)
    job = propose(shop.objects, shop.settings.home, "", "toy", key_id=key, hyperparameters={**SHORT, "n_epochs": 1})
    shop.run(charges=charges)
    reply = shop.reply(job)
    assert reply["status"] == "proposed", reply["error"]
    assert spent(admin, org) == reply["trained_tokens"] > 0


def test_a_job_that_the_balance_does_not_allow_fails_before_training(
    paid: tuple[Shop, AdminService, TrainingCharges],
) -> None:
    shop, admin, charges = paid
    org, key = new_key(admin, credits=10)
    job = shop.create(chat_lines(), hyperparameters=SHORT, key_id=key)
    shop.run(charges=charges)
    assert shop.reply(job)["error"]["code"] == "insufficient_quota", shop.reply(job)["error"]
    assert spent(admin, org) == 0


def test_a_continued_job_needs_credit_for_what_is_left_alone(
    paid: tuple[Shop, AdminService, TrainingCharges],
) -> None:
    shop, admin, charges = paid
    job = shop.create(chat_lines(), hyperparameters=SHORT)
    shop.run(charges=charges)
    tokens = shop.reply(job)["trained_tokens"]
    org, key = new_key(admin, credits=tokens)
    job = shop.create(chat_lines(), hyperparameters=SHORT, key_id=key)
    stop = StopAfter(6)
    shop.run("first", charges=charges, signals=stop.signals, watch=stop)
    assert 0 < spent(admin, org) < tokens
    shop.run("second", charges=charges)
    assert shop.reply(job)["status"] == "succeeded", shop.reply(job)["error"]
    assert spent(admin, org) == tokens


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_the_steps_before_a_pause_are_charged_once(
    paid: tuple[Shop, AdminService, TrainingCharges], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quicksilver.training.service.lease.RENEW_S", 0.01)
    shop, admin, charges = paid
    org, key = new_key(admin)
    # One epoch of 20 steps, paused in its middle.
    chosen = {"n_epochs": 1, "batch_size": 1, "rank": 4}
    job = shop.create(chat_lines(), hyperparameters=chosen, key_id=key)

    def pause(*_: Any) -> None:
        if shop.reply(job)["status"] == "running":
            shop.jobs.pause("", job.id)

    shop.run(charges=charges, watch=pause)
    assert shop.reply(job)["status"] == "paused"
    before = spent(admin, org)
    assert before > 0
    getattr(shop.jobs, verb)("", job.id)
    if verb == "cancel":
        assert spent(admin, org) == before
        return
    shop.run("second", charges=charges)
    assert shop.reply(job)["status"] == "succeeded"
    assert before < spent(admin, org) == shop.reply(job)["trained_tokens"]


def test_a_charge_that_was_begun_is_completed_by_the_next_run(
    paid: tuple[Shop, AdminService, TrainingCharges], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, admin, charges = paid
    org, key = new_key(admin)
    job = shop.create(chat_lines(), hyperparameters=SHORT, key_id=key)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(charges, "charge", kill)
        killed(shop, job, charges=charges)
    assert spent(admin, org) == 0
    shop.run("second", charges=charges)
    assert spent(admin, org) == shop.reply(job)["trained_tokens"]
