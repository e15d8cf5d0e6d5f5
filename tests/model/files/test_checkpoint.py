"""Checkpoints: saved models load with the same bits, incomplete checkpoints are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quicksilver.errors import CheckpointRefused, ModelNotFound
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.families import FAMILIES
from quicksilver.model.files.checkpoint import load_model
from tests.model.build import SMALL, random_model, run_dense, small_config, token_ids
from tests.support.canvas_adapters import new_canvas
from tests.support.saved_model import hf_config, save_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_loads_with_the_same_bits(tmp_path: Path, family: str, tied: bool) -> None:
    model = random_model(small_config(family, tied_head=tied))
    save_model(model, tmp_path)
    found = load_model(tmp_path)
    assert found.config == model.config
    assert torch.equal(run_dense(found, token_ids(9)), run_dense(model, token_ids(9)))
    assert (found.head.weight is found.tokens.weight) == tied
    assert not any(p.requires_grad for p in found.parameters())


def stack_experts(folder: Path, suffix: str = "") -> None:
    """Rewrites a saved model with one tensor for the experts of a layer."""
    tensors, stacked = load_file(folder / "model.safetensors"), dict[str, list[torch.Tensor]]()
    for name in sorted(name for name in tensors if ".experts." in name):
        before, _, rest = name.partition(".experts.")
        stacked.setdefault(f"{before}.experts.{rest.split('.')[1]}{suffix}", []).append(tensors.pop(name))
    save_file(tensors | {name: torch.stack(parts) for name, parts in stacked.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("family", ["llada2", "sdar-moe"])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_experts_in_one_tensor_load_with_the_same_bits(tmp_path: Path, family: str, suffix: str) -> None:
    model = random_model(small_config(family))
    save_model(model, tmp_path)
    stack_experts(tmp_path, suffix)
    assert not any(".experts.0." in name for name in load_file(tmp_path / "model.safetensors"))
    for name, parameter in load_model(tmp_path).named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_experts_in_one_tensor_must_be_as_many_as_the_config_says(tmp_path: Path) -> None:
    save_model(random_model(small_config("sdar-moe")), tmp_path)
    stack_experts(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": config["num_experts"] - 1}))
    with pytest.raises(CheckpointRefused):
        load_model(tmp_path)


def test_an_attached_canvas_is_not_part_of_the_base(tmp_path: Path) -> None:
    model = random_model()
    attach_canvas(model, new_canvas(SMALL, 4, 8, 0))
    save_model(model, tmp_path)
    assert load_model(tmp_path).canvas is None


def test_weights_are_loaded_in_the_requested_dtype(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path)
    model = load_model(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.rope.inv_freq.dtype == torch.float32


def shard(folder: Path) -> dict[str, str]:
    """Split a saved model into two files and an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in files.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in files.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    model = random_model()
    save_model(model, tmp_path)
    shard(tmp_path)
    assert torch.equal(run_dense(load_model(tmp_path), token_ids(9)), run_dense(model, token_ids(9)))


@pytest.mark.parametrize(
    "name", ["../a.safetensors", "/a.safetensors", "sub/a.safetensors", "a.bin", "none.safetensors", 7]
)
def test_an_index_cannot_name_a_file_outside_the_directory(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "model"
    save_model(random_model(), folder)
    weight_map = shard(folder)
    (tmp_path / "a.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map | {"x": name}}))
    with pytest.raises(CheckpointRefused):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model.norm.weight", None, "missing"),
        ("model.norm.weight", torch.zeros(65), "needs 64 rows"),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(96, 65), "does not fit"),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(95, 64), "rows"),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(96), "does not fit"),
        ("model.layers.9.mlp.up_proj.weight", torch.zeros(96, 64), "does not use"),
        ("model.norm.weight", torch.zeros(64, dtype=torch.int8), "not a float"),
    ],
)
def test_tensors_that_do_not_fit_refuse_the_checkpoint(
    tmp_path: Path, name: str, value: torch.Tensor | None, reason: str
) -> None:
    save_model(random_model(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if value is None else tensors | {name: value}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointRefused, match=reason):
        load_model(tmp_path)


def test_old_exports_with_a_rotary_table_and_a_second_head_load(tmp_path: Path) -> None:
    model = random_model(small_config(tied_head=True))
    save_model(model, tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.zeros(128, 64)}
    save_file(load_file(tmp_path / "model.safetensors") | extra, tmp_path / "model.safetensors")
    assert torch.equal(load_model(tmp_path).tokens.weight, model.tokens.weight)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "model_type"),
        ({"config.json": json.dumps(hf_config(SMALL)).encode(), "pytorch_model.bin": b"x"}, "pickled"),
        ({"config.json": json.dumps(hf_config(SMALL)).encode()}, "has no"),
        ({"config.json": b"[1]"}, "JSON object"),
        ({"config.json": b"\xff"}, "valid JSON"),
        ({"model.safetensors": b""}, r"config\.json is missing"),
    ],
)
def test_the_error_of_a_directory_without_a_model_names_the_missing_files(
    tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointRefused, match=reason):
        load_model(tmp_path)


def test_missing_paths_and_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_model(tmp_path / "nothing")
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    with pytest.raises(CheckpointRefused, match=r"\.gguf file or a directory"):
        load_model(tmp_path / "model.onnx")
