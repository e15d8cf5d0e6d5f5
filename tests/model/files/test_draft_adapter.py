"""The draft adapter of Nemotron-Labs-Diffusion, in PEFT's file layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.draft_adapter import FOLDER, load_draft_adapter
from tests.model.build import small_config

CONFIG = small_config("nemotron-labs-diffusion")


def write(folder: Path, num_layers: int = 2, kind: str = "o_proj", **options: object) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(num_layers):
        prefix = f"base_model.model.encoder.layers.{layer}.self_attn.{kind}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, CONFIG.q_dim)
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(CONFIG.dim, 4)
    (folder / FOLDER).mkdir()
    save_file(tensors, folder / FOLDER / "adapter_model.safetensors")
    (folder / FOLDER / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 16, **options}))
    return tensors


def test_pairs_are_scaled_by_alpha_over_rank(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    adapter = load_draft_adapter(tmp_path, CONFIG)
    assert adapter is not None
    pairs = list(adapter.low_rank())
    assert [(index, name) for index, name, _ in pairs] == [(0, "o"), (1, "o")]
    prefix = "base_model.model.encoder.layers.1.self_attn.o_proj"
    wanted = 4.0 * tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"]
    torch.testing.assert_close(pairs[1][2].product(), wanted)


def test_a_checkpoint_without_the_folder_has_no_adapter(tmp_path: Path) -> None:
    assert load_draft_adapter(tmp_path, CONFIG) is None


def test_adapters_on_other_layers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, kind="q_proj")
    with pytest.raises(CheckpointRefused, match="q_proj"):
        load_draft_adapter(tmp_path, CONFIG)


def test_missing_layers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, num_layers=1)
    with pytest.raises(CheckpointRefused, match="each of 2 layers"):
        load_draft_adapter(tmp_path, CONFIG)


def test_other_kinds_of_lora_are_refused(tmp_path: Path) -> None:
    write(tmp_path, use_dora=True)
    with pytest.raises(CheckpointRefused, match="plain LoRA"):
        load_draft_adapter(tmp_path, CONFIG)
