from __future__ import annotations

import torch

from quicksilver.training.attention import DocumentAttention
from quicksilver.training.lora import new_lora, num_lora_params
from quicksilver.training.network import Network
from quicksilver.training.toy_task import TINY
from tests.support.dense_attend import DenseAttend


def test_pieces_equal_the_transformer(network: Network) -> None:
    ids = torch.randint(0, 96, (2, 11))
    positions = torch.arange(11).expand(2, 11)
    one_document = torch.ones(2, 11, dtype=torch.long)
    ours = network.forward(network.embed(ids), positions, DocumentAttention(one_document))
    x = network.model.embed(ids.flatten())
    theirs = network.model(x, positions.flatten(), DenseAttend(2, is_causal=True))
    assert torch.allclose(ours.flatten(0, 1), theirs, atol=1e-5)


def test_a_lora_equals_merged_weights(network: Network) -> None:
    lora = new_lora(TINY, 4, seed=2, device=network.device)
    for name, tensor in lora.items():
        if name.endswith("B"):
            tensor.data.normal_(std=0.1)
    ids, positions = torch.randint(0, 96, (1, 9)), torch.arange(9)[None]
    attention = DocumentAttention(torch.ones(1, 9, dtype=torch.long))
    adapted = network.forward(network.embed(ids), positions, attention, lora)
    for index, layer in enumerate(network.model.layers):
        for name, linear in zip(("qkv", "o", "gu", "dn"), (layer.qkv, layer.o, layer.gate_up, layer.down), strict=True):
            linear.weight.data += (lora[f"{index}.{name}.B"] @ lora[f"{index}.{name}.A"]).detach()
    merged = network.forward(network.embed(ids), positions, attention)
    assert torch.allclose(adapted, merged, atol=1e-5)


def test_a_fresh_lora_changes_nothing_and_counts_right(network: Network) -> None:
    lora = new_lora(TINY, 4, seed=2, device=network.device)
    assert sum(t.numel() for t in lora.values()) == num_lora_params(TINY, 4)
    ids, positions = torch.randint(0, 96, (1, 9)), torch.arange(9)[None]
    attention = DocumentAttention(torch.ones(1, 9, dtype=torch.long))
    plain, adapted = (network.forward(network.embed(ids), positions, attention, x) for x in (None, lora))
    assert torch.equal(plain, adapted)
