"""Low-rank pairs and new adapters."""

from __future__ import annotations

import torch

from quicksilver.model.lowrank import LINEARS, LowRank, LowRankModules, linear_shapes
from quicksilver.model.transformer import Transformer
from tests.model.build import SMALL
from tests.support.canvas_adapters import new_canvas


def test_a_pair_adds_b_a_x_where_the_gate_is_open() -> None:
    torch.manual_seed(0)
    base, pair, x = torch.nn.Linear(6, 5), LowRank(torch.randn(2, 6), torch.randn(5, 2)), torch.randn(3, 6)
    gate = torch.tensor([[1.0], [0.0], [1.0]])
    with torch.no_grad():
        found, changed = pair(base, x, gate), base(x) + x @ pair.product().T
        torch.testing.assert_close(found[[0, 2]], changed[[0, 2]])
        assert torch.equal(found[1], base(x)[1])
        modules = LowRankModules(torch.nn.Linear(6, 2, bias=False), torch.nn.Linear(2, 5, bias=False))
        modules.a.weight, modules.b.weight = pair.A, pair.B
        torch.testing.assert_close(modules(base, x, gate), found)


def test_shapes_are_those_of_the_networks_linears() -> None:
    layer, shapes = Transformer(SMALL).layers[0], linear_shapes(SMALL)
    for name, attribute in LINEARS.items():
        assert tuple(getattr(layer, attribute).weight.shape) == shapes[name]


def test_a_new_canvas_has_a_pair_for_every_linear_and_b_is_zero() -> None:
    adapter = new_canvas(SMALL, rank=3, max_canvas_len=5, seed=0)
    pairs = list(adapter.low_rank())
    assert len(pairs) == SMALL.num_layers * len(LINEARS)
    assert not any(bool(pair.B.any()) for _, _, pair in pairs)
    assert adapter.max_canvas_len == 5
