"""Packing while a checkpoint is read equals packing the loaded model; 4-bit files keep their steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.load_packed import PackTensors
from quicksilver.model.adapters import Adapter, merge_skill
from quicksilver.model.files.checkpoint import build, load_model, open_source
from quicksilver.model.lowrank import LowRank
from tests.backends.cpu.build import same
from tests.model.build import random_model, small_config, write_gguf
from tests.support.canvas_adapters import new_canvas
from tests.support.quantised import quantise_model
from tests.support.saved_model import save_model


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_4_bit_weights_of_a_file_are_not_rounded_again(tmp_path: Path, family: str, kind: str) -> None:
    config = small_config(family, num_layers=1, dim=256, ffn_dim=512, num_heads=4, num_kv_heads=2, head_dim=64)
    write_gguf(tmp_path / "m.gguf", config, kind)
    source = open_source(tmp_path / "m.gguf")
    packed = build(source, torch.float32, "cpu", PackTensors(None, source))
    dense = load_model(tmp_path / "m.gguf")
    for name in ("qkv", "o", "gate_up", "down"):
        found, wanted = getattr(packed.layers[0], name), getattr(dense.layers[0], name).weight
        assert found.bits == 4
        # Rows of one input each leave nothing to round in the activations.
        rows = torch.eye(wanted.shape[1])
        torch.testing.assert_close(found(rows) - found(rows * 0), wanted.T, rtol=1e-3, atol=1e-3)


def test_more_bits_in_one_part_of_a_fused_weight_make_all_of_it_int8(tmp_path: Path) -> None:
    config = small_config("qwen2", num_layers=1, dim=256, ffn_dim=512, num_heads=4, num_kv_heads=2, head_dim=64)
    write_gguf(tmp_path / "m.gguf", config, "Q4_K", {"blk.0.attn_v.weight": "Q6_K", "blk.0.ffn_down.weight": "Q6_K"})
    source = open_source(tmp_path / "m.gguf")
    layer = build(source, torch.float32, "cpu", PackTensors(None, source)).layers[0]
    assert [getattr(layer, name).bits for name in ("qkv", "o", "gate_up", "down")] == [8, 4, 4, 8]


@pytest.mark.parametrize("is_tied", [True, False])
def test_tensor_by_tensor_equals_merging_and_quantising_the_whole(tmp_path: Path, is_tied: bool) -> None:
    parent = random_model(small_config("qwen2", tied_head=is_tied))
    save_model(parent, tmp_path)
    pairs = new_canvas(parent.config, rank=3, max_canvas_len=1, seed=2)
    skill = Adapter([{} for _ in pairs.layers])
    for index, name, pair in pairs.low_rank():
        skill.layers[index][name] = LowRank(pair.A, torch.randn_like(pair.B) * 0.1)  # type: ignore[index]
    skill.replace_embeddings(torch.tensor([3, 5]), torch.randn(2, parent.config.dim))
    whole = load_model(tmp_path)
    merge_skill(whole, skill)
    quantise_model(whole)
    source = open_source(tmp_path)
    streamed = build(source, torch.float32, "cpu", PackTensors(skill, source))
    streamed.weight_format = "int8"
    assert same(streamed, whole)
