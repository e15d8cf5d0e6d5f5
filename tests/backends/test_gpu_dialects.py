"""The benchmark of diffusion checkpoints runs at tiny shapes, and its configs have the sizes of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.dialect_networks import config_of, random_network
from benchmarks.gpu_dialects import CASES, bytes_per_forward, main


def test_every_case_runs_its_fixed_number_of_steps(tmp_path: Path) -> None:
    found = {
        row["case"]: row for row in main(["--tiny", "--device", "cpu", "--prompt-len", "20", "--out", str(tmp_path)])
    }
    assert set(found) == set(CASES)
    assert all(row["tokens"] == 40 * row["streams"] and row["roofline_pct"] > 0 for row in found.values())
    # Three canvases of 16 steps; blocks of four in two steps each.
    assert found["gemma"]["forwards"] == 3 * 16
    assert 20 <= found["sdar-8b"]["forwards"] <= 24
    assert list(tmp_path.glob("dialects-*.json"))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("sdar-4b", 4.4), ("sdar-8b", 8.2), ("sdar-30b-a3b", 30.5), ("llada2-mini", 16.3), ("diffusion-gemma", 25.8)],
)
def test_the_configs_have_the_published_sizes(name: str, billions: float) -> None:
    assert config_of(name, is_tiny=False).num_params / 1e9 == pytest.approx(billions, rel=0.03)


def test_only_chosen_experts_count_as_read() -> None:
    model = random_network(config_of("llada2-mini", is_tiny=True), "cpu", torch.float32)
    whole, part = bytes_per_forward(model, 8), bytes_per_forward(model, 2)
    experts = sum(p.nbytes for p in model.parameters() if p.dim() == 3)
    assert whole - part == pytest.approx(0.75 * experts)
