"""The registry: unknown families are refused by name, and a new family needs nothing but its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quicksilver.core import DecoderName
from quicksilver.dialect import ContextKind
from quicksilver.errors import CheckpointRefused
from quicksilver.model.config import ModelConfig
from quicksilver.model.families import FAMILIES, Family
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.files.tensor_names import HF_NAMES
from tests.model.build import random_model, run_dense, small_config, token_ids
from tests.support.saved_model import hf_config, save_model


@pytest.mark.parametrize("model_type", ["mamba", "Llama", "", None, 3, ["llama"]])
def test_an_unknown_model_type_is_refused_with_the_known_ones(model_type: Any) -> None:
    config = hf_config(small_config()) | {"model_type": model_type}
    with pytest.raises(CheckpointRefused, match="model_type") as refused:
        ModelConfig.from_hf(config)
    assert repr(model_type) in refused.value.message
    assert all(name in refused.value.message for name in FAMILIES)


def test_an_unknown_architecture_of_a_known_type_is_refused_with_the_known_ones() -> None:
    config = hf_config(small_config()) | {"architectures": ["LlamaForSequenceClassification"]}
    with pytest.raises(CheckpointRefused, match="LlamaForSequenceClassification") as refused:
        ModelConfig.from_hf(config)
    assert all(family.architecture in refused.value.message for family in FAMILIES.values())


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("efficient-dlm", "stable-diffcoder")])
def test_architectures_are_optional_where_the_model_type_is_enough(name: str) -> None:
    config = small_config(name)
    without = {key: value for key, value in hf_config(config).items() if key != "architectures"}
    assert ModelConfig.from_hf(without, name) == config


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_is_read_back_as_it_was_written(name: str) -> None:
    config = small_config(name)
    assert ModelConfig.from_hf(hf_config(config), name) == config


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("EfficientDLM", "llama"), ("StableDiffcoderForCausalLM", "qwen3"), ("LLaDA2ForImages", "llada2_moe")],
)
def test_a_class_with_the_model_type_of_another_family_is_refused(name: str, model_type: str) -> None:
    with pytest.raises(CheckpointRefused, match=name):
        ModelConfig.from_hf(hf_config(small_config()) | {"architectures": [name], "model_type": model_type})


def test_a_remote_class_beside_a_plain_architecture_is_refused() -> None:
    remote = {"auto_map": {"AutoModelForCausalLM": "modeling_new.NewDiffusionLM"}}
    with pytest.raises(CheckpointRefused, match="NewDiffusionLM"):
        ModelConfig.from_hf(hf_config(small_config()) | remote)


def test_two_families_with_one_class_are_told_apart_by_the_name_of_the_checkpoint() -> None:
    config = hf_config(small_config("sdar"))
    assert ModelConfig.from_hf(config, "SDAR-8B-Chat").family == "sdar"
    assert ModelConfig.from_hf(config, "I-DLM-8B").family == "i-dlm"
    assert ModelConfig.from_hf(config, "idlm").family == "i-dlm"
    assert ModelConfig.from_hf(config, "checkpoint-500").family == "sdar"
    assert ModelConfig.from_hf(config | {"_name_or_path": "org/I-DLM-8B"}, "checkpoint-500").family == "i-dlm"


@pytest.mark.parametrize("name", ["multidlm", "SDAR-8B"])
@pytest.mark.parametrize("path", ["/data/multidlm/SDAR-8B", "/data/i-dlm/SDAR-8B", "", None])
def test_a_part_of_a_word_or_of_a_path_is_no_name(name: str, path: str | None) -> None:
    config = hf_config(small_config("sdar")) | {"_name_or_path": path}
    assert ModelConfig.from_hf(config, name).family == "sdar"


def test_a_choice_by_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ModelConfig.from_hf(hf_config(small_config("sdar")), "renamed")
    assert "loaded as sdar" in caplog.text
    assert "i-dlm" in caplog.text
    ModelConfig.from_hf(hf_config(small_config("llada2")), "renamed")
    assert "neither LLaDA2.0 nor 2.1" in caplog.text


@pytest.mark.parametrize(
    ("name", "path", "default", "decoders"),
    [
        ("LLaDA2.1-mini", "", "edit", {"confidence", "edit"}),
        ("LLaDA2.0-flash-CAP", "", "confidence", {"confidence"}),
        ("renamed", "inclusionAI/LLaDA2.0-mini", "confidence", {"confidence"}),
        ("renamed", "inclusionAI/LLaDA2.1-mini/", "edit", {"confidence", "edit"}),
        ("renamed", "/data/LLaDA2.0/other", "confidence", {"confidence", "edit"}),
        ("tuned-v12.0", "", "confidence", {"confidence", "edit"}),
    ],
)
def test_only_llada2_1_edits_by_default(name: str, path: str, default: str, decoders: set[str]) -> None:
    """`confidence` is right for both versions; it has a threshold of its own."""
    read = ModelConfig.from_hf(hf_config(small_config("llada2")) | {"_name_or_path": path}, name)
    assert (read.dialect.default.name, set(read.dialect.decoders)) == (default, decoders)
    params = {params.name: params for params in (read.dialect.default, *read.dialect.others)}
    assert params[DecoderName.CONFIDENCE].threshold == 0.95
    assert set(params) == decoders
    assert ModelConfig.from_hf(hf_config(read), "saved copy").dialect == read.dialect


def test_the_block_length_of_sdar_is_in_its_name_if_the_config_has_none() -> None:
    config = hf_config(small_config("sdar"))
    del config["block_size"]
    assert ModelConfig.from_hf(config, "SDAR-4B-Chat").dialect.block_len == 4
    assert ModelConfig.from_hf(config, "SDAR-4B-Chat-b16").dialect.block_len == 16


def test_tiny_a2d_is_masked_or_block_diffusion_by_its_name() -> None:
    config = hf_config(small_config("tiny-a2d"))
    masked = ModelConfig.from_hf(config, "Qwen3-0.6B-diffusion-mdlm-v0.1")
    assert masked.dialect.context is ContextKind.FULL
    assert ModelConfig.from_hf(hf_config(masked), "saved copy").dialect == masked.dialect
    blocks = ModelConfig.from_hf(config, "Qwen3-0.6B-diffusion-bd3lm-v0.1").dialect
    assert (blocks.context, blocks.block_len) == (ContextKind.BLOCK, 4)
    with pytest.raises(CheckpointRefused, match="shifted"):
        ModelConfig.from_hf(config | {"right_shift_logits": True}, "Qwen3-0.6B-diffusion-mdlm-v0.1")


@pytest.mark.parametrize("changes", [{"mask_token_id": 128}, {"mask_token_id": -1}, {"block_size": 1 << 20}])
def test_mask_tokens_and_blocks_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(CheckpointRefused, match="mask token"):
        ModelConfig.from_hf(hf_config(small_config("sdar")) | changes)


@pytest.mark.parametrize(
    "changes", [{"num_experts": 0}, {"n_group": 3}, {"num_experts_per_tok": 5}, {"score_function": "softmax"}]
)
def test_experts_that_cannot_be_built_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointRefused):
        ModelConfig.from_hf(hf_config(small_config("llada2")) | changes)


def test_an_unknown_gguf_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointRefused, match="rwkv") as refused:
        ModelConfig.from_gguf({"general.architecture": "rwkv"})
    assert all(family.gguf_architecture in refused.value.message for family in FAMILIES.values())


def test_a_new_family_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names in config.json and in the files, and both layer options."""

    def standard(config: Any) -> dict[str, Any]:
        return {**config, "hidden_size": config["d_model"]}

    names = {target: tuple(f"net.{part}" for part in parts) for target, parts in HF_NAMES.items()}
    new = Family(
        "newt", "NewtForCausalLM", "newt", qkv_bias=True, qk_norm=True, standard_config=standard, hf_names=names
    )
    monkeypatch.setitem(FAMILIES, "newt", new)
    model = random_model(small_config("newt"))
    save_model(model, tmp_path)
    assert all(name.startswith("net.") for name in load_file(tmp_path / "model.safetensors"))
    config = json.loads((tmp_path / "config.json").read_text())
    config["d_model"] = config.pop("hidden_size")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = token_ids(9)
    assert torch.equal(run_dense(load_model(tmp_path), ids), run_dense(model, ids))
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointRefused, match=r"net\.model"):
        load_model(tmp_path)
