"""Pairs of an expected and a wrong answer: which proposals become pairs, the loss, and that training separates them."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.journal import Journal
from quicksilver.training.loop import Loop
from quicksilver.training.network import Network
from quicksilver.training.pairs import PairTask, pair_batches, pair_loss, wrong_proposals
from quicksilver.training.proposals import Proposal
from quicksilver.training.recipe import Optim, Pairs

SPEC = Pairs(rank=4, row_len=48, rows_per_batch=3, head_chunk=32, optim=Optim(lr=2e-2, max_steps=12, warmup_steps=1))


def proposals(count: int = 12) -> list[Proposal]:
    """Prompts of 5 to 7 tokens with wrong answers of 4 and expected ones of 5."""
    torch.manual_seed(3)
    made = []
    for number in range(count):
        prompt, answer, expected = (torch.randint(20, 90, (size,)).tolist() for size in (5 + number % 3, 3, 4))
        made.append(Proposal(prompt, [*answer, 2], "next", is_shown=True, is_accepted=False, expected=[*expected, 2]))
    return made


def started(network: Network, spec: Pairs = SPEC, count: int = 12) -> PairTask:
    task = PairTask(network, proposals(count), spec, [3, 4])
    task.begin({name: tensor.detach().clone() for name, tensor in task.parameters.items()})
    return task


def test_only_wrong_answers_with_an_expected_one_become_pairs() -> None:
    wrong = proposals(5)
    others = [
        replace(wrong[0], is_accepted=True),
        replace(wrong[1], expected=[]),
        replace(wrong[2], answer=[]),
        replace(wrong[3], answer=wrong[3].expected),
        replace(wrong[4], prompt=[5] * 44),
    ]
    found = wrong_proposals([*others, *wrong], 48, 0, seed=1)
    assert sorted(p.prompt for p in found) == sorted(p.prompt for p in wrong)
    assert found == wrong_proposals([*others, *wrong], 48, 0, seed=1)
    assert wrong_proposals(wrong, 48, 2, seed=1) == found[:2]


def test_batches_have_both_sides_of_each_pair_once() -> None:
    made = proposals(40)
    batches = pair_batches(made, 48, 3)
    assert len(batches) > 2
    place = 0
    for batch in batches:
        assert batch.examples.num_examples % 2 == 0
        for number in range(batch.examples.num_examples):
            pair = made[place // 2]
            answer = batch.examples.rows.token_ids[batch.examples.example == number].tolist()
            assert answer == (pair.answer if number % 2 else pair.expected)
            place += 1


def test_rows_that_hold_no_pair_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="do not hold a pair"):
        pair_batches(proposals(), 12, 1)


def test_loss_equals_numbers_worked_out_by_hand() -> None:
    log_ratio = torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    spec = replace(SPEC, beta=0.5, expected_weight=2.0)
    loss, margin = pair_loss(log_ratio, torch.tensor([-6.0, -2.0]), 4.0, spec)
    assert margin.tolist() == [1.0, -1.0]
    # -log sigmoid(1) = 0.313262 and -log sigmoid(-1) = 1.313262; cross-entropy per token 4 / 4, twice.
    assert loss.item() == pytest.approx((0.313262 + 1.313262) / 2 + 2.0, abs=1e-5)


def test_loss_begins_at_that_of_equal_sides(network: Network) -> None:
    report = started(network, replace(SPEC, expected_weight=0.0)).step(0)
    assert report.loss.item() == pytest.approx(math.log(2), abs=1e-6)


def test_training_raises_expected_above_rejected(network: Network, tmp_path: Path) -> None:
    task = started(network)
    Loop(task, SPEC.optim, tmp_path, Journal(tmp_path, "pairs", io.StringIO())).run()
    report = task.step(0)
    assert report.scalars["accuracy"].item() == 1.0
    assert report.scalars["expected"].item() > 0.5
    assert report.scalars["rejected"].item() < report.scalars["expected"].item() - 1.0


def test_without_wrong_proposals_the_stage_is_refused(network: Network) -> None:
    with pytest.raises(InvalidRequest, match="rejected proposals"):
        PairTask(network, [], SPEC, [3, 4])
