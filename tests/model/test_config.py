"""Configs: read from both formats, refused if the network cannot compute them."""

from __future__ import annotations

import pytest

from quicksilver.errors import CheckpointRefused
from quicksilver.model.config import ModelConfig, RopeScaling
from quicksilver.model.families import FAMILIES
from tests.model.build import random_model, small_config
from tests.support.saved_model import hf_config

HF = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu",
    "use_sliding_window": False, "sliding_window": 32768,
}  # fmt: skip

GGUF = {
    "general.architecture": "llama", "llama.block_count": 30, "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536, "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192, "llama.rope.freq_base": 1e5, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64, "tensor.token_embd.rows": 49152,
}  # fmt: skip


def test_a_hugging_face_config_gives_the_shape_and_the_familys_options() -> None:
    config = ModelConfig.from_hf(HF)
    assert (config.num_layers, config.dim, config.head_dim, config.kv_dim) == (28, 1536, 128, 256)
    assert config.qkv_bias
    assert config.tied_head
    assert not config.qk_norm
    assert config.num_params == 1_543_714_304


def test_a_gguf_config_gives_the_shape_of_smollm2() -> None:
    config = ModelConfig.from_gguf(GGUF)
    assert config.num_params == 134_515_008
    assert config.kv_bytes_per_token(4) == 46_080
    assert config.tied_head
    assert not ModelConfig.from_gguf(GGUF | {"tensor.output": True}).tied_head


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parameter_count_is_that_of_the_network(family: str) -> None:
    for tied in (True, False):
        config = small_config(family, tied_head=tied)
        assert config.num_params == sum(p.numel() for p in random_model(config).parameters())


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        RopeScaling("linear", 2.0),
        RopeScaling("yarn", 4.0, 64, 16.0, 2.0, 1.3),
        RopeScaling("yarn", 4.0, 64),
        RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0),
    ],
)
def test_a_config_survives_the_round_trip_through_hugging_face_names(scaling: RopeScaling | None) -> None:
    for family in FAMILIES:
        if family == "diffusion-gemma" and scaling is not None:
            continue  # it has a rotation per kind of layer, which cannot be scaled
        config = small_config(family, rope_scaling=scaling, tied_head=True)
        assert ModelConfig.from_hf(hf_config(config)) == config


def test_rope_scaling_of_diffusiongemma_is_refused() -> None:
    with pytest.raises(CheckpointRefused, match="rope scaling of DiffusionGemma"):
        small_config("diffusion-gemma", rope_scaling=RopeScaling("linear", 2.0))


def test_old_and_new_key_names_of_rope_scaling_are_equivalent() -> None:
    old = HF | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "rope_theta": 1e6}
    new = {key: value for key, value in HF.items() if key != "rope_theta"} | {"rope_parameters": rope}
    assert ModelConfig.from_hf(old) == ModelConfig.from_hf(new)
    assert ModelConfig.from_hf(old).rope_scaling == RopeScaling("yarn", 4.0, 8192)


def test_gguf_rope_scaling_is_read() -> None:
    fields = GGUF | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert ModelConfig.from_gguf(fields).rope_scaling == RopeScaling("linear", 2.0)
    yarn = fields | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 2048}
    assert ModelConfig.from_gguf(yarn).rope_scaling == RopeScaling("yarn", 2.0, 2048)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "sliding"),
        ({"mlp_bias": True}, "MLP"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "yarn"),
        ({"hidden_size": -1}, "dim"),
        ({"hidden_size": 10**30}, "dim"),
        ({"num_hidden_layers": 5000}, "layers"),
        ({"num_hidden_layers": "many"}, "ValueError"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"num_key_value_heads": 5}, "KV heads"),
        ({"rms_norm_eps": 2.0}, "epsilon"),
        ({"rope_theta": -5.0}, "theta"),
        ({"rope_theta": float("nan")}, "theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "out of range"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "out of range"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": -4}}, "trained"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}}, "range"),
        ({"vocab_size": None}, "TypeError"),
    ],
)
def test_a_config_the_network_cannot_compute_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        ModelConfig.from_hf(HF | change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "bert"}, "bert"),
        ({"llama.block_count": None}, "TypeError"),
        ({"llama.rope.dimension_count": 32}, "partial"),
        ({"llama.rope.scaling.type": "ntk", "llama.rope.scaling.factor": 2.0}, "ntk"),
    ],
)
def test_gguf_metadata_the_network_cannot_compute_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        ModelConfig.from_gguf(GGUF | change)
    with pytest.raises(CheckpointRefused, match=r"the GGUF metadata have no llama\."):
        ModelConfig.from_gguf({"general.architecture": "llama"})


def test_a_config_without_a_needed_key_names_it() -> None:
    with pytest.raises(CheckpointRefused, match=r"config\.json has no hidden_size"):
        ModelConfig.from_hf({key: value for key, value in HF.items() if key != "hidden_size"})


@pytest.mark.parametrize("key", [*HF, "head_dim", "rope_scaling", "rope_parameters"])
def test_any_value_anywhere_gives_a_config_or_a_refusal(key: str) -> None:
    outcomes = set()
    for value in (None, "x", -1, 0, 1, 2.5, True, 10**40, float("inf"), float("nan"), [], [1], {}, {"factor": "x"}):
        try:
            outcomes.add(type(ModelConfig.from_hf(HF | {key: value})))
        except CheckpointRefused:
            outcomes.add(CheckpointRefused)
    assert outcomes <= {ModelConfig, CheckpointRefused}


def test_an_extended_context_is_yarn_over_the_trained_one_and_only_once() -> None:
    config = ModelConfig.from_hf(HF)
    longer = config.with_yarn(4.0)
    assert longer.context_len == 4 * config.context_len
    assert longer.rope_scaling == RopeScaling("yarn", 4.0, config.context_len)
    assert ModelConfig.from_hf(hf_config(longer)) == longer
    with pytest.raises(CheckpointRefused, match="already"):
        longer.with_yarn(2.0)
    for factor in (1.0, 0.5, -1.0, float("nan"), float("inf")):
        with pytest.raises(CheckpointRefused):
            config.with_yarn(factor)
