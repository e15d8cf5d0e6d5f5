"""Trainable LoRA pairs: initialisation, warm start and truncation of the rank."""

from __future__ import annotations

import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.lora import copy_start, cut_rank, new_lora
from quicksilver.training.network import Network


def test_a_new_pair_adds_nothing_and_depends_on_the_seed_only(network: Network) -> None:
    first, same, other = (new_lora(network.config, 4, seed, torch.device("cpu")) for seed in (1, 1, 2))
    assert all(not tensor.any() for name, tensor in first.items() if name.endswith(".B"))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["0.qkv.A"], other["0.qkv.A"])


def test_truncation_keeps_the_nearest_product_of_the_rank() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(8, 12), torch.randn(10, 8)
    cut = cut_rank({"0.o.A": a, "0.o.B": b}, 3)
    assert cut["0.o.A"].shape == (3, 12)
    u, s, v = torch.linalg.svd(b @ a)
    nearest = u[:, :3] @ torch.diag(s[:3]) @ v[:3]
    torch.testing.assert_close(cut["0.o.B"] @ cut["0.o.A"], nearest, atol=1e-4, rtol=1e-4)


def test_a_warm_start_of_another_shape_is_refused(network: Network) -> None:
    lora = new_lora(network.config, 4, 0, torch.device("cpu"))
    with pytest.raises(InvalidRequest, match="warm_start"):
        copy_start(lora, {name: tensor[:1] for name, tensor in lora.items()}, 4)
