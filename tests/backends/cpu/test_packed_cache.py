"""Prepared weights: the same model from the cache as from the files, and a fresh one whenever anything changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quicksilver.backends.cpu.support import refusal
from quicksilver.model.adapters import attach_canvas, merge_skill, new_canvas
from quicksilver.model.files.checkpoint import build, load_model, open_source, save_model
from quicksilver.model.lowrank import Adapter, LowRank
from quicksilver.model.transformer import Transformer
from tests.model.build import random_model, run_dense, small_config, token_ids, write_gguf

if refusal() is not None:
    pytest.skip(f"compiled loops: {refusal()}", allow_module_level=True)

from quicksilver.backends.cpu.load_packed import PackTensors
from quicksilver.backends.cpu.packed_cache import prepared
from quicksilver.backends.cpu.quantise import quantise_model


def make_model(seed: int = 0) -> Transformer:
    model = random_model(small_config("qwen2"), seed)
    attach_canvas(model, new_canvas(model.config, rank=3, max_canvas_len=4, seed=1))
    return quantise_model(model)


def same(first: Transformer, second: Transformer) -> bool:
    ids, is_canvas = token_ids(9), torch.arange(9) > 6
    assert (first.canvas is None) == (second.canvas is None)
    assert first.weight_format == second.weight_format == "int8"
    tables = (first.state_dict(), second.state_dict())
    assert list(tables[0]) == list(tables[1])
    return all(torch.equal(tables[0][name], tables[1][name]) for name in tables[0]) and torch.equal(
        first.logits(run_dense(first, ids))[~is_canvas], second.logits(run_dense(second, ids))[~is_canvas]
    )


def sources(folder: Path) -> list[Path]:
    paths = [folder / "weights", folder / "skill"]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def refuse() -> Transformer:
    raise AssertionError("made again without need")


def test_second_start_reads_the_same_model(tmp_path: Path) -> None:
    files = sources(tmp_path)
    made = prepared(tmp_path / "kept", "some", files, make_model)
    assert same(prepared(tmp_path / "kept", "some", files, refuse), made)


def test_a_changed_source_makes_a_new_file_and_drops_the_old(tmp_path: Path) -> None:
    files, kept = sources(tmp_path), tmp_path / "kept"
    prepared(kept, "some", files, make_model)
    prepared(kept, "some-other", files, make_model)
    files[1].write_bytes(b"other")
    found = prepared(kept, "some", files, lambda: make_model(seed=5))
    assert not same(found, make_model())
    assert len(list(kept.glob("*/*"))) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b[:8] + b"{" + b[9:]])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    files, kept = sources(tmp_path), tmp_path / "kept"
    made = prepared(kept, "some", files, make_model)
    (path,) = kept.glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    assert same(prepared(kept, "some", files, make_model), made)
    assert same(prepared(kept, "some", files, refuse), made)


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    assert same(prepared(tmp_path / "kept", "some", sources(tmp_path), make_model), make_model())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_four_bits_of_a_file_are_not_rounded_again(tmp_path: Path, family: str, kind: str) -> None:
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


def test_more_bits_in_one_part_of_a_fused_weight_make_it_all_bytes(tmp_path: Path) -> None:
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
