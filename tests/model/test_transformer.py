"""The network: batch-invariant rows, mask embeddings, gradients of the adapter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from quicksilver.model.adapters import attach_canvas
from quicksilver.model.transformer import Rope, Transformer, rotate
from tests.model.build import SMALL, random_model, run_dense, small_config, token_ids
from tests.support.canvas_adapters import new_canvas
from tests.support.dense_attend import DenseAttend


class OwnRow:
    """Attention in which every row sees itself alone, so rows meet in matmuls only."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def with_canvas(seed: int = 3) -> Transformer:
    model = random_model()
    adapter = new_canvas(SMALL, rank=4, max_canvas_len=8, seed=seed)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    attach_canvas(model, adapter)
    return model


@pytest.mark.parametrize(("threads", "counts"), [(1, range(1, 65)), (2, (1, 2, 3, 5, 9, 11, 13, 31))])
def test_a_rows_bits_do_not_depend_on_the_number_of_rows(threads: int, counts: Sequence[int]) -> None:
    model, before = random_model(small_config(dim=192, ffn_dim=512)), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            x, positions = model.embed(token_ids(64)), torch.arange(64)
            whole = model(x, positions, OwnRow())
            logits = model.logits(whole)
            for rows in counts:
                assert torch.equal(model(x[:rows], positions[:rows], OwnRow()), whole[:rows]), rows
                assert torch.equal(model.logits(whole[:rows]), logits[:rows]), rows
    finally:
        torch.set_num_threads(before)


def test_mask_index_replaces_tokens_by_learned_masks() -> None:
    model, ids = with_canvas(), token_ids(4)
    x = model.embed(ids, torch.tensor([-1, 0, 5, -1]))
    assert model.canvas is not None
    assert torch.equal(x[[0, 3]], model.embed(ids)[[0, 3]])
    assert torch.equal(x[[1, 2]], model.canvas.mask_embedding[[0, 5]])


def test_no_canvas_rows_is_the_plain_parent_bit_for_bit() -> None:
    ids, positions = token_ids(9), torch.arange(9)
    plain = run_dense(random_model(), ids)
    model = with_canvas()
    with torch.inference_mode():
        for is_canvas in (None, torch.zeros(9, dtype=torch.bool)):
            found = model(model.embed(ids), positions, DenseAttend(1, is_causal=True), is_canvas)
            assert torch.equal(found, plain)


def test_gradients_reach_the_adapter_and_nothing_else() -> None:
    model, ids = with_canvas(), token_ids(8)
    assert model.canvas is not None
    model.canvas.requires_grad_()
    is_canvas = torch.arange(8) >= 3
    mask_index = torch.where(is_canvas, torch.arange(8) - 3, -1)
    hidden = model(model.embed(ids, mask_index), torch.arange(8), DenseAttend(1, is_causal=True), is_canvas)
    model.logits(hidden[is_canvas]).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.canvas.parameters())
    assert all(p.grad is None for name, p in model.named_parameters() if not name.startswith("canvas."))


def test_half_precision_runs_and_stays_close() -> None:
    ids = token_ids(10)
    wanted = run_dense(random_model(), ids)
    model = random_model().to(torch.bfloat16)
    found = run_dense(model, ids)
    assert model.dtype == found.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(found.float(), wanted, dim=-1).min() > 0.99


def test_the_forward_is_one_graph_for_the_compiler() -> None:
    model, ids = with_canvas(), token_ids(8)
    is_canvas = torch.arange(8) >= 5
    attend = OwnRow()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        wanted = model(model.embed(ids), torch.arange(8), attend, is_canvas)
        torch.testing.assert_close(compiled(model.embed(ids), torch.arange(8), attend, is_canvas), wanted)


def test_logits_of_a_tied_head_are_products_with_the_embedding() -> None:
    model = random_model(small_config(tied_head=True))
    hidden = torch.randn(3, SMALL.dim)
    assert model.head.weight is model.tokens.weight
    assert model.weight_bytes == 4 * model.config.num_params + 4 * SMALL.head_dim // 2
    torch.testing.assert_close(model.logits(hidden), hidden @ model.tokens.weight.T)


def test_position_zero_changes_nothing_and_lengths_are_kept() -> None:
    rope, x = Rope(small_config()), torch.randn(5, 3, 16)
    turned = rotate(x, rope(torch.tensor([0, 1, 2, 50, 255])))
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_distance_alone() -> None:
    rope, q, k = Rope(small_config()), torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(q_at: int, k_at: int) -> torch.Tensor:
        return (rotate(q, rope(torch.tensor([q_at]))) * rotate(k, rope(torch.tensor([k_at])))).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), rtol=1e-4, atol=1e-4)
    assert abs(float(score(7, 3) - score(8, 3))) > 1e-4


def test_frequencies_stay_fp32_when_the_model_is_cast() -> None:
    rope = Rope(small_config()).to(torch.bfloat16)
    cos, sin = rope(torch.tensor([1000]))
    assert {rope.inv_freq.dtype, cos.dtype, sin.dtype} == {torch.float32}
    assert rotate(torch.ones(1, 1, 16, dtype=torch.bfloat16), (cos, sin)).dtype == torch.bfloat16
