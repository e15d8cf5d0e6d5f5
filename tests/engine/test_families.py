"""`verify` is the parent's greedy text in float32 for every architecture served, drafted well or badly, and beyond the
context that the parent was trained on.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.hub.resolve import ModelFiles
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.transformer import Transformer
from tests.model.build import random_model, small_config
from tests.support.canvas_adapters import new_canvas
from tests.support.dense_attend import DenseAttend
from tests.support.saved_model import save_model
from tests.support.tiny import decode_params, generate

# coder-1.5b in small: six query heads to a KV head of 128, biases on q, k and v.
CODER = {"num_heads": 6, "num_kv_heads": 1, "head_dim": 128, "rope_theta": 1e6}
ARCHITECTURES = {
    "coder, tied head": ("qwen2", {**CODER, "tied_head": True}),
    "coder, own head": ("qwen2", {**CODER, "tied_head": False}),
    "qwen3": ("qwen3", {"tied_head": True}),
    "llama": ("llama", {}),
}
PROMPTS = [[random.Random(i).randrange(128) for _ in range(3 + 9 * i)] for i in range(5)]


@cache
def model_of(name: str) -> Transformer:
    family, changes = ARCHITECTURES[name]
    model = random_model(small_config(family, **changes))  # type: ignore[arg-type]
    adapter = new_canvas(model.config, rank=4, max_canvas_len=16, seed=0)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    attach_canvas(model, adapter)
    return model.requires_grad_(False)


@torch.inference_mode()
def greedy(model: Transformer, prompt: list[int], num_tokens: int) -> list[int]:
    """Without cache, batch or canvas: the whole text once more for every token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        x = model.embed(torch.tensor(tokens))
        hidden = model(x, torch.arange(len(tokens)), DenseAttend(1, is_causal=True))
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_verify_and_ar_write_the_parents_greedy_text(name: str) -> None:
    model = model_of(name)
    for prompt in PROMPTS:
        wanted = greedy(model, prompt, 24)
        for decoder, canvas_len in (("ar", 1), ("verify", 4), ("verify", 8), ("verify", 16)):
            engine = build_engine(model, name, EngineConfig(num_pages=32))
            params = decode_params(decoder, canvas_len=canvas_len, max_new_tokens=24)
            assert generate(engine, prompt, params) == wanted


def test_an_extended_context_is_served_to_its_end(tmp_path: Path) -> None:
    config = small_config("qwen2", context_len=32)
    save_model(random_model(config), tmp_path)
    load = LoadConfig(device="cpu", weights="float32", yarn=4)
    engine = load_engine(ModelFiles("long", tmp_path), load, EngineConfig(page_size=4))
    assert engine.info.context_len == 128
    wanted = greedy(engine.backend.model, PROMPTS[2], 128 - len(PROMPTS[2]))
    for decoder in ("ar", "verify"):
        params = decode_params(decoder, canvas_len=8, max_new_tokens=len(wanted))
        assert generate(engine, PROMPTS[2], params) == wanted


def test_memory_for_a_full_context_is_set_aside_on_a_cpu() -> None:
    config = small_config("qwen2", context_len=1 << 20)
    engine = build_engine(random_model(config), "long", EngineConfig())
    assert engine.info.num_pages * engine.info.page_size >= config.context_len
