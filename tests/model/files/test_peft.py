"""PEFT's layout: what it means for the fused linears, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.peft import CONFIG_FILE, PROJECTIONS, WEIGHTS_FILE, load_peft, projection_shapes, to_peft
from quicksilver.model.row_adapters import check_row_adapter
from tests.support.row_adapters import random_adapter
from tests.support.tiny import TINY

OPTIONS = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "task_type": "CAUSAL_LM"}


def name_of(layer: int, projection: str, side: str) -> str:
    group = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
    return f"base_model.model.model.layers.{layer}.{group}.{projection}.lora_{side}.weight"


def random_pairs(projections: tuple[str, ...], rank: int = 3, layers: tuple[int, ...] = (0, 1)) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes, tensors = projection_shapes(TINY), {}
    for layer in layers:
        for projection in projections:
            out_dim, in_dim = shapes[projection]
            tensors[name_of(layer, projection, "A")] = torch.randn(rank, in_dim)
            tensors[name_of(layer, projection, "B")] = torch.randn(out_dim, rank)
    return tensors


def written(folder: Path, tensors: Mapping[str, Tensor], **options: object) -> Path:
    save_file(dict(tensors), folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps({**OPTIONS, **options}))
    return folder


@pytest.mark.parametrize(("options", "scale"), [({}, 2.0), ({"use_rslora": True}, 6 / 3**0.5), ({"lora_alpha": 3}, 1)])
@pytest.mark.parametrize(
    "projections", [("q_proj", "v_proj"), ("up_proj", "o_proj", "down_proj"), tuple(projection_shapes(TINY))]
)
def test_every_projection_gets_its_scaled_product(
    tmp_path: Path, projections: tuple[str, ...], options: dict[str, object], scale: float
) -> None:
    tensors = random_pairs(projections)
    adapter = load_peft(written(tmp_path, tensors, **options), TINY)
    products = {(index, name): pair.product() for index, name, pair in adapter.low_rank()}
    shapes = projection_shapes(TINY)
    for layer in range(TINY.num_layers):
        for name, parts in PROJECTIONS.items():
            if not set(parts) & set(projections):
                assert (layer, name) not in products
                continue
            rows = products[layer, name].split([shapes[part][0] for part in parts])
            for part, found in zip(parts, rows, strict=True):
                a, b = (tensors.get(name_of(layer, part, side)) for side in "AB")
                wanted = torch.zeros_like(found) if a is None or b is None else b @ a * scale
                assert torch.allclose(found, wanted, atol=1e-5)


def test_layers_without_pairs_stay_as_they_are(tmp_path: Path) -> None:
    adapter = load_peft(written(tmp_path, random_pairs(("q_proj",), layers=(1,)), layers_to_transform=[1]), TINY)
    assert [(index, name) for index, name, _ in adapter.low_rank()] == [(1, "qkv")]
    check_row_adapter(TINY, adapter)


def test_an_adapter_of_this_project_is_the_same_after_export(tmp_path: Path) -> None:
    adapter = random_adapter(1, rank=5)
    for name, data in to_peft(adapter, TINY, "tiny").items():
        (tmp_path / name).write_bytes(data)
    again = load_peft(tmp_path, TINY)
    assert again.metadata == {"base_model": "tiny"}
    pairs = {(index, name): pair for index, name, pair in again.low_rank()}
    for index, name, pair in adapter.low_rank():
        assert torch.allclose(pairs[index, name].product(), pair.product(), atol=1e-5)


def test_replaced_embeddings_cannot_be_exported() -> None:
    with pytest.raises(CheckpointRefused, match="token embeddings"):
        to_peft(random_adapter(1, embedding_ids=(3,)), TINY, "tiny")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"a_feature_of_next_year": 1}, "a_feature_of_next_year"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": 0}, "r is 0"),
        ({"r": 10**9}, "r is 1000000000"),
        ({"r": True}, "r is True"),
        ({"r": "3"}, "r is 3"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"r": 4}, "rank 4"),
    ],
)
def test_settings_beyond_plain_lora_are_refused_by_name(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        load_peft(written(tmp_path, random_pairs(("q_proj",)), **options), TINY)


def test_empty_settings_of_other_features_are_accepted(tmp_path: Path) -> None:
    empty = {"use_dora": False, "modules_to_save": None, "rank_pattern": {}, "loftq_config": {}, "megatron_core": "m"}
    pairs = random_pairs(("q_proj",))
    plain = [pair.product() for _, _, pair in load_peft(written(tmp_path, pairs), TINY).low_rank()]
    loaded = load_peft(written(tmp_path, pairs, **empty, init_lora_weights=True), TINY)
    products = [pair.product() for _, _, pair in loaded.low_rank()]
    assert all(torch.equal(one, other) for one, other in zip(products, plain, strict=True))


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("base_model.model.lm_head.lora_A.weight", (3, 32), "lm_head"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (3, 97), "lora_embedding_A"),
        (name_of(0, "q_proj", "A").replace("lora_A.weight", "lora_magnitude_vector"), (32,), "lora_magnitude_vector"),
        (name_of(9, "q_proj", "A"), (3, 32), "2 layers"),
        (name_of(0, "q_proj", "A"), (3, 31), r"\(3, 31\)"),
        (name_of(0, "q_proj", "B"), (33, 3), r"\(33, 3\)"),
        (name_of(0, "k_proj", "A"), (3, 32), "lora_A or lora_B is missing"),
        ("../../etc/passwd", (3, 32), "not a plain name"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, name: str, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        load_peft(written(tmp_path, {**random_pairs(("q_proj",)), name: torch.zeros(shape)}), TINY)


def test_files_without_weights_or_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match="no tensors"):
        load_peft(written(tmp_path, {}), TINY)
    (tmp_path / CONFIG_FILE).write_text("[")
    with pytest.raises(CheckpointRefused, match="not valid JSON"):
        load_peft(tmp_path, TINY)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = random_pairs(("q_proj",))
    tensors[name_of(1, "q_proj", "B")][2, 1] = float("nan")
    with pytest.raises(CheckpointRefused, match="not finite"):
        check_row_adapter(TINY, load_peft(written(tmp_path, tensors), TINY))


def test_fused_projections_with_the_same_a_keep_its_rank(tmp_path: Path) -> None:
    """As in an export: one A for q, k and v."""
    adapter = random_adapter(1, rank=5)
    for name, data in to_peft(adapter, TINY, "tiny").items():
        (tmp_path / name).write_bytes(data)
    assert {pair.A.shape[0] for _, _, pair in load_peft(tmp_path, TINY).low_rank()} == {5}
