"""The qwen2 family: layer options reach the network, and its GGUF layout is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quicksilver.model.families.qwen2 import QWEN2
from quicksilver.model.files.checkpoint import load_model
from tests.model.build import random_model, small_config, write_gguf


def test_the_options_are_those_of_the_published_network() -> None:
    assert (QWEN2.qkv_bias, QWEN2.qk_norm, QWEN2.gguf_interleaves_rope) == (True, False, False)
    layer = random_model(small_config("qwen2")).layers[0]
    assert (layer.qkv.bias is not None) == QWEN2.qkv_bias  # type: ignore[union-attr]
    assert hasattr(layer, "q_norm") == QWEN2.qk_norm


def test_query_rows_of_a_gguf_file_are_in_rotate_half_order(tmp_path: Path) -> None:
    config = small_config("qwen2")
    stored = write_gguf(tmp_path / "m.gguf", config)["blk.0.attn_q.weight"]
    found = load_model(tmp_path / "m.gguf").layers[0].qkv.weight[: config.q_dim].numpy()  # type: ignore[union-attr]
    wanted = interleaved(stored, config.num_heads) if QWEN2.gguf_interleaves_rope else stored
    assert np.array_equal(found, wanted)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Even rows of each head first, then the odd ones."""
    by_head = rows.reshape(heads, -1, rows.shape[1])
    return np.concatenate((by_head[:, ::2], by_head[:, 1::2]), axis=1).reshape(rows.shape)
