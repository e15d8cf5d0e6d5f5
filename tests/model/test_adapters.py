"""Adapters on a model: a canvas adapter changes canvas rows only; a skill is merged into the weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from quicksilver.errors import CheckpointRefused
from quicksilver.model.adapters import LINEARS, Adapter, CanvasAdapter, attach_canvas, merge_skill, stack_adapters
from quicksilver.model.transformer import Transformer
from tests.model.build import SMALL, random_model, run_dense, small_config, token_ids
from tests.support.canvas_adapters import new_canvas
from tests.support.dense_attend import DenseAttend

IS_CANVAS = torch.tensor([False] * 6 + [True] * 5)


def random_adapter(rank: int = 4, seed: int = 1) -> CanvasAdapter:
    torch.manual_seed(seed)
    adapter = new_canvas(SMALL, rank=rank, max_canvas_len=8, seed=seed)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return adapter


def run(model: Transformer, ids: Tensor) -> Tensor:
    """Six causal rows, then a canvas of five that see each other."""
    visible = torch.ones(11, 11).tril().bool()
    visible[6:, 6:] = True
    mask_index = torch.where(IS_CANVAS, torch.arange(11) - 6, -1)
    with torch.inference_mode():
        return model(model.embed(ids, mask_index), torch.arange(11), DenseAttend(1, visible), IS_CANVAS)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_gated_rows_equal_two_dense_models_stitched_row_by_row(family: str) -> None:
    """Each linear is computed with W and with W + BA for all rows; the gate picks."""
    ids, adapter = token_ids(11), random_adapter()
    model = random_model(small_config(family))
    attach_canvas(model, adapter)
    stitched = copy.deepcopy(model)

    class Stitched(torch.nn.Module):
        def __init__(self, delta: Tensor) -> None:
            super().__init__()
            self.delta = delta

        def forward(self, base: torch.nn.Linear, x: Tensor, gate: Tensor) -> Tensor:
            changed = linear(x, base.weight + self.delta, base.bias)
            return torch.where(gate > 0, changed, linear(x, base.weight, base.bias))

    assert stitched.canvas is not None
    for layer in stitched.canvas.layers:
        for name in LINEARS:
            layer[name] = Stitched(layer[name].B @ layer[name].A)  # type: ignore[index,operator]
    torch.testing.assert_close(run(model, ids), run(stitched, ids), rtol=0, atol=1e-5)
    assert not torch.allclose(run(model, ids)[6:], run_dense(random_model(small_config(family)), ids)[6:], atol=1e-2)


def test_causal_rows_keep_the_parents_bits_with_a_canvas() -> None:
    ids, model = token_ids(11), random_model()
    attach_canvas(model, random_adapter())
    assert torch.equal(run(model, ids)[:6], run_dense(random_model(), ids)[:6])


def test_a_new_canvas_changes_nothing_but_the_masks() -> None:
    model = random_model()
    adapter = new_canvas(SMALL, rank=4, max_canvas_len=8, seed=0, token_embedding=model.tokens.weight)
    torch.testing.assert_close(adapter.mask_embedding[3], model.tokens.weight.mean(0))
    attach_canvas(model, adapter)
    ids = token_ids(11)
    with torch.inference_mode():
        found = model(model.embed(ids), torch.arange(11), DenseAttend(1, is_causal=True), IS_CANVAS)
    assert torch.equal(found, run_dense(random_model(), ids))


def test_the_same_seed_gives_the_same_adapter() -> None:
    first, second, other = (new_canvas(SMALL, 4, 8, seed) for seed in (5, 5, 6))
    assert torch.equal(first.layers[1]["dn"].A, second.layers[1]["dn"].A)  # type: ignore[index]
    assert not torch.equal(first.layers[1]["dn"].A, other.layers[1]["dn"].A)  # type: ignore[index]


def test_a_merged_skill_equals_its_low_rank_term_on_every_row() -> None:
    ids, adapter = token_ids(11), random_adapter()
    gated, merged = random_model(), random_model()
    attach_canvas(gated, adapter)
    merge_skill(merged, adapter)
    with torch.inference_mode():
        every = torch.ones(11, dtype=torch.bool)
        wanted = gated(gated.embed(ids), torch.arange(11), DenseAttend(1, is_causal=True), every)
    torch.testing.assert_close(run_dense(merged, ids), wanted, rtol=0, atol=1e-5)


def test_a_skill_replaces_the_embeddings_of_reserved_tokens() -> None:
    model, adapter = random_model(small_config(tied_head=True)), Adapter([])
    adapter.layers = random_adapter().layers
    rows = torch.randn(2, SMALL.dim)
    adapter.replace_embeddings(torch.tensor([7, 99]), rows)
    before = model.tokens.weight.clone()
    merge_skill(model, adapter)
    assert torch.equal(model.tokens.weight[[7, 99]], rows)
    assert torch.equal(model.tokens.weight[8:99], before[8:99])
    assert torch.equal(model.head.weight, model.tokens.weight)


def test_an_adapter_for_another_base_is_refused() -> None:
    for change in ({"num_layers": 3}, {"ffn_dim": 128}, {"dim": 32}):
        with pytest.raises(CheckpointRefused, match="adapter"):
            attach_canvas(random_model(small_config(**change)), random_adapter())
    adapter = random_adapter()
    adapter.replace_embeddings(torch.tensor([500]), torch.zeros(1, SMALL.dim))
    with pytest.raises(CheckpointRefused, match="vocabulary"):
        merge_skill(random_model(), adapter)


def test_a_stack_has_the_products_of_all_and_the_last_embeddings() -> None:
    one, two = (Adapter([dict(layer.items()) for layer in random_adapter(seed=seed).layers]) for seed in (1, 2))
    one.replace_embeddings(torch.tensor([3, 5]), torch.ones(2, SMALL.dim))
    two.replace_embeddings(torch.tensor([5, 7]), torch.zeros(2, SMALL.dim))
    two.canvas = Adapter([dict(layer.items()) for layer in random_adapter(seed=3).layers])
    stack = stack_adapters([one, two])
    assert stack.canvas is not None
    for (_, _, a), (_, _, both) in zip(two.canvas.low_rank(), stack.canvas.low_rank(), strict=True):
        assert torch.equal(a.product(), both.product())
    for (_, _, a), (_, _, b), (_, _, both) in zip(one.low_rank(), two.low_rank(), stack.low_rank(), strict=True):
        torch.testing.assert_close(both.product(), a.product() + b.product())
    assert stack.embedding_ids is not None
    assert stack.embedding_rows is not None
    rows = dict(zip(stack.embedding_ids.tolist(), stack.embedding_rows.mean(1).tolist(), strict=True))
    assert rows == {3: 1.0, 5: 0.0, 7: 0.0}
