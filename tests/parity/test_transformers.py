"""The network against transformers: the same weights give the same logits at every position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quicksilver.model.assemble import extend_context
from quicksilver.model.config import ModelConfig, RopeScaling
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from tests.model.build import causal_plan, new_cache, random_model, run_plan, small_config, token_ids
from tests.support.dense_attend import DenseAttend
from tests.support.saved_model import save_model
from tests.support.weights import smollm2

pytestmark = pytest.mark.parity

LINEAR = RopeScaling("linear", 2.0)
YARN = RopeScaling("yarn", 4.0, 64)
LLAMA3 = RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)

CASES: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("llama", {"tied_head": True, "num_kv_heads": 1, "num_layers": 4}),
    ("llama", {"num_kv_heads": 4, "rope_scaling": LINEAR}),
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": LLAMA3, "rope_theta": 5e5}),
    ("qwen2", {}),
    ("qwen2", {"tied_head": True, "rope_theta": 1e6, "num_layers": 4}),
    ("qwen2", {"rope_scaling": YARN}),
    ("qwen3", {"head_dim": 32}),
    ("qwen3", {"tied_head": True, "rope_scaling": LINEAR, "num_layers": 3}),
    ("qwen3", {"rope_scaling": YARN, "num_kv_heads": 1}),
]


def gentle(config: ModelConfig) -> Transformer:
    """Random weights at the scale of trained ones, so that a tolerance of 1e-5 measures rounding only."""
    model = random_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(0.5)
    return model


def their_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return theirs(ids[None]).logits[0]


@pytest.mark.parametrize(
    ("family", "changes"), CASES, ids=lambda value: "-".join(value) if isinstance(value, dict) else value
)
def test_logits_equal_transformers_at_every_position(tmp_path: Path, family: str, changes: dict[str, object]) -> None:
    model, ids = gentle(small_config(family, **changes)), token_ids(100)
    save_model(model, tmp_path)
    with torch.inference_mode():
        hidden = model(model.embed(ids), torch.arange(100), DenseAttend(1, is_causal=True))
    torch.testing.assert_close(model.logits(hidden), their_logits(tmp_path, ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_context_extended_after_loading_equals_transformers_yarn(tmp_path: Path, family: str) -> None:
    """The recipe of Qwen2.5's model card: factor 4 over the trained context, which the text here goes beyond."""
    model, ids = gentle(small_config(family, context_len=32)), token_ids(100)
    plain = model(model.embed(ids), torch.arange(100), DenseAttend(1, is_causal=True)).detach()
    extend_context(model, 4.0)
    assert model.config.context_len == 128
    save_model(model, tmp_path)
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 32)
    with torch.inference_mode():
        hidden = model(model.embed(ids), torch.arange(100), DenseAttend(1, is_causal=True))
    torch.testing.assert_close(model.logits(hidden), their_logits(tmp_path, ids), rtol=0, atol=1e-5)
    assert not torch.allclose(hidden, plain, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_paged_chunked_forward_equals_transformers(tmp_path: Path, family: str) -> None:
    model, ids = gentle(small_config(family)), token_ids(50)
    save_model(model, tmp_path)
    cache, pages = new_cache(model.config), torch.randperm(64, generator=torch.Generator().manual_seed(0))[:13]
    hidden = [
        run_plan(model, ids[start:end], causal_plan([torch.arange(start, end)], [pages]), cache)
        for start, end in ((0, 17), (17, 18), (18, 50))
    ]
    torch.testing.assert_close(model.logits(torch.cat(hidden)), their_logits(tmp_path, ids), rtol=0, atol=1e-5)


def test_a_checkpoint_of_transformers_loads(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rope_theta=5e4, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    model, ids = load_model(tmp_path), token_ids(30, vocab_size=96)
    with torch.inference_mode():
        hidden = model(model.embed(ids), torch.arange(30), DenseAttend(1, is_causal=True))
    torch.testing.assert_close(model.logits(hidden), their_logits(tmp_path, ids), rtol=0, atol=1e-5)


def test_smollm2s_real_weights_give_transformers_logits(tmp_path: Path) -> None:
    model = load_model(smollm2().weights)
    save_model(model, tmp_path)
    for seed in range(3):
        ids = token_ids(24, seed=seed, vocab_size=model.config.vocab_size)
        with torch.inference_mode():
            hidden = model(model.embed(ids), torch.arange(24), DenseAttend(1, is_causal=True))
        ours, theirs = model.logits(hidden), their_logits(tmp_path, ids)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
