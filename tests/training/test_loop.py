from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from quicksilver.errors import CheckpointRefused
from quicksilver.training.batches import RowStore
from quicksilver.training.journal import Journal
from quicksilver.training.loop import Loop, StepReport, TrainingDiverged, clip_gradients
from quicksilver.training.network import Network
from quicksilver.training.pack import pack
from quicksilver.training.recipe import Optim, Skill
from quicksilver.training.skill import SkillTask
from quicksilver.training.toy_task import PAD, verses


def journal(folder: Path) -> Journal:
    return Journal(folder, "skill", io.StringIO())


def skill_loop(network: Network, folder: Path, optim: Optim) -> Loop:
    spec = Skill(rank=4, rows_per_batch=4, head_chunk=64, optim=optim)
    store = RowStore(pack(verses(64), 64, PAD, 96), 4, optim.seed, torch.device("cpu"))
    return Loop(SkillTask(network, store, spec, [3, 4]), optim, folder, journal(folder))


def test_a_resumed_run_is_bit_exact(network: Network, tmp_path: Path) -> None:
    whole = Optim(lr=1e-2, max_steps=8, warmup_steps=2, ema_decay=0.9)
    unbroken = skill_loop(network, tmp_path / "a", whole).run()
    first = skill_loop(network, tmp_path / "b", whole)
    first._is_over = lambda elapsed: first.step_number >= 3  # type: ignore[method-assign]
    first.run()
    resumed = skill_loop(network, tmp_path / "b", whole).run()
    assert unbroken.keys() == resumed.keys()
    for name, tensor in unbroken.items():
        assert torch.equal(tensor, resumed[name]), name


def test_training_lowers_the_loss_and_logs_it(network: Network, tmp_path: Path) -> None:
    skill_loop(network, tmp_path, Optim(lr=3e-2, max_steps=30, warmup_steps=3, log_every=10)).run()
    reports = [json.loads(line) for line in (tmp_path / "skill.jsonl").read_text().splitlines()]
    assert reports[-1]["step"] == 30
    assert reports[-1]["loss"] < 0.75 * reports[0]["loss"]
    assert {"lr", "rows_per_s", "eta_s", "grad_norm"} <= reports[-1].keys()


def test_the_time_left_is_that_of_the_first_limit_and_never_zero_before_it(network: Network, tmp_path: Path) -> None:
    loop = skill_loop(network, tmp_path, Optim(max_steps=100, max_seconds=75.0, log_every=1))
    loop.step_number, loop._elapsed = 2, 30.0
    assert loop._seconds_left() == 45.0
    loop.step_number, loop._elapsed = 80, 40.0
    assert loop._seconds_left() == 10.0
    loop.optim = Optim(max_steps=2, log_every=1)
    loop.step_number, loop._elapsed = 0, 0.0
    loop.run()
    first = json.loads((tmp_path / "skill.jsonl").read_text().splitlines()[0])
    assert first["eta_s"] == first["seconds"] > 1e-4


def test_a_checkpoint_of_another_recipe_is_refused(network: Network, tmp_path: Path) -> None:
    skill_loop(network, tmp_path, Optim(max_steps=1)).run()

    class Other:
        parameters = {"x": torch.zeros(1, requires_grad=True)}  # noqa: RUF012

        def step(self, number: int) -> StepReport:
            return StepReport(torch.zeros(()), 1)

        def sample(self) -> str:
            return ""

    with pytest.raises(CheckpointRefused, match="another run"):
        Loop(Other(), Optim(max_steps=1), tmp_path, journal(tmp_path)).run()


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    class Diverging:
        parameters = {"x": torch.ones(1, requires_grad=True)}  # noqa: RUF012

        def step(self, number: int) -> StepReport:
            loss = (self.parameters["x"] * float("nan")).sum()
            loss.backward()
            return StepReport(loss.detach(), 1)

        def sample(self) -> str:
            return ""

    with pytest.raises(TrainingDiverged, match="lower lr"):
        Loop(Diverging(), Optim(max_steps=5), tmp_path, journal(tmp_path)).run()


def test_clipping_scales_to_the_norm_and_drops_what_is_not_finite() -> None:
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert float(clip_gradients(gradients, 1.0)) == 5.0
    assert torch.allclose(torch.cat(gradients), torch.tensor([0.6, 0.8]), atol=1e-5)
    broken = [torch.tensor([float("inf")]), torch.tensor([1.0])]
    clip_gradients(broken, 1.0)
    assert torch.cat(broken).tolist() == [0.0, 0.0]


def test_the_schedule_warms_up_then_falls_to_nothing(tmp_path: Path, network: Network) -> None:
    loop = skill_loop(network, tmp_path, Optim(lr=1.0, max_steps=100, warmup_steps=10))
    rates = []
    for step in (0, 4, 9, 50, 99):
        loop.step_number = step
        rates.append(round(loop.lr_at(step / 100), 3))
    assert rates == [0.1, 0.48, 0.91, 0.5, 0.01]
