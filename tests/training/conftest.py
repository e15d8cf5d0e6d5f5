"""Tiny models and data for the training room: random weights, ids instead of text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from quicksilver.training.network import Network
from quicksilver.training.pack import Document

TINY = ModelConfig(
    family="llama",
    num_layers=2,
    dim=32,
    ffn_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=96,
    context_len=256,
    tied_head=True,
)
END, PAD = 2, 0


@pytest.fixture
def network() -> Network:
    torch.manual_seed(5)
    model = Transformer(TINY)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return Network(model)


def verses(count: int, num_verses: int = 4, length: int = 14) -> list[Document]:
    """Documents that each name a verse and recite it: small enough to be learned by heart in seconds."""
    rng = np.random.default_rng(3)
    lines = rng.integers(20, 95, (num_verses, length))
    documents = []
    for i in range(count):
        which = i % num_verses
        ids = np.concatenate([[1, 3 + which], lines[which], [END]])
        documents.append(Document(ids, np.arange(len(ids)) >= 2))
    return documents
