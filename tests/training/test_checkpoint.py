"""Saved states of a run: a resumed run continues exactly, and another run's file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quicksilver.errors import CheckpointRefused
from quicksilver.training import checkpoint
from quicksilver.training.checkpoint import load_state, save_state, saved_facts


class Training:
    """Two parameters under AdamW, with an average of one of them."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.parameters: dict[str, Tensor] = {
            name: torch.randn(3, generator=generator).requires_grad_() for name in ("a", "b")
        }
        self.adamw = torch.optim.AdamW(self.parameters.values(), lr=0.1)
        self.average = {"a": self.parameters["a"].detach().clone()}

    def step(self) -> None:
        self.adamw.zero_grad()
        sum((p**2).sum() for p in self.parameters.values()).backward()  # type: ignore[union-attr]
        self.adamw.step()
        self.average["a"].lerp_(self.parameters["a"].detach(), 0.5)

    def save(self, path: Path) -> None:
        save_state(path, self.parameters, self.adamw, self.average, {"step": 2, "loss": 0.5})

    def load(self, path: Path) -> dict[str, float]:
        return dict(load_state(path, self.parameters, self.adamw, self.average))


def test_a_resumed_run_continues_exactly(tmp_path: Path) -> None:
    path, first = tmp_path / "runs" / "state.safetensors", Training()
    first.step()
    first.step()
    first.save(path)
    second = Training(seed=1)
    assert second.load(path) == saved_facts(path) == {"step": 2, "loss": 0.5}
    first.step()
    second.step()
    for name, parameter in first.parameters.items():
        assert torch.equal(parameter, second.parameters[name])
    assert torch.equal(first.average["a"], second.average["a"])


def test_a_state_before_the_first_step_has_no_moments(tmp_path: Path) -> None:
    path, first = tmp_path / "state.safetensors", Training()
    first.save(path)
    second = Training(seed=1)
    second.load(path)
    assert not second.adamw.state
    assert torch.equal(first.parameters["b"], second.parameters["b"])


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    path, first = tmp_path / "state.safetensors", Training()
    first.save(path)
    second = Training()
    second.parameters["c"] = torch.zeros(1)
    with pytest.raises(CheckpointRefused, match="another run"):
        second.load(path)


def test_a_write_that_fails_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, training = tmp_path / "state.safetensors", Training()
    training.save(path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    training.step()
    with pytest.raises(OSError, match="disk full"):
        training.save(path)
    assert path.read_bytes() == before
