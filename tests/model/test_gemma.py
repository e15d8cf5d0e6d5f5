"""DiffusionGemma's network: rotations, windows, self-conditioning, and rows that do not depend on other rows."""

from __future__ import annotations

import pytest
import torch

from quicksilver.errors import CheckpointRefused
from quicksilver.model.attention import PagedCache, RowPlan, Segment, heads_of
from quicksilver.model.gemma import DiffusionGemma, GemmaExperts, proportional_frequencies
from quicksilver.model.gemma_config import GemmaConfig
from tests.model.build import PAGE_SIZE, new_cache, random_model, small_config, token_ids
from tests.support.dense_attend import dense_gemma

CONFIG = small_config("diffusion-gemma")
NUM_CANVAS = 8


@pytest.fixture(scope="module")
def model() -> DiffusionGemma:
    found = random_model(CONFIG)
    assert isinstance(found, DiffusionGemma)
    return found


def plan_of(num_context: int, num_cached: int, num_canvas: int) -> tuple[RowPlan, torch.Tensor]:
    """Context rows from `num_cached` on, then a canvas; and the pages, out of order."""
    pages = torch.tensor([3, 1, 7, 5, 0, 2, 6, 4, 9, 8])
    positions = torch.arange(num_cached, num_context + num_canvas)
    is_canvas = positions >= num_context
    slots = pages[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    first = num_context - num_cached
    span_end = torch.where(is_canvas, first + num_canvas, 0)
    return RowPlan(
        positions,
        torch.where(is_canvas, -1, slots),
        is_canvas,
        torch.where(is_canvas, num_context, positions + 1),
        torch.where(is_canvas, first, 0),
        span_end,
        [Segment(0, len(positions), pages)],
    ), pages


@torch.inference_mode()
def run(model: DiffusionGemma, cache: PagedCache, tokens: torch.Tensor, num_context: int, num_cached: int) -> object:
    plan, _ = plan_of(num_context, num_cached, len(tokens) - num_context)
    x = model.embed(tokens[num_cached:])
    soft = torch.ones(int(plan.is_canvas.sum()), CONFIG.dim)
    x = model.condition(x, plan.is_canvas, soft)
    return model(x, plan.positions, model.attention(plan, cache), plan.is_canvas)


@pytest.mark.parametrize("num_context", [3, 8, 9, 10, 25])
@torch.inference_mode()
def test_paged_attention_has_the_bits_of_attention_without_a_cache(model: DiffusionGemma, num_context: int) -> None:
    """Contexts shorter and longer than the window of nine, computed at once and in two forwards."""
    tokens = token_ids(num_context + NUM_CANVAS)
    is_canvas = torch.arange(len(tokens)) >= num_context
    x = model.condition(model.embed(tokens), is_canvas, torch.ones(NUM_CANVAS, CONFIG.dim))
    dense = model(x, torch.arange(len(tokens)), dense_gemma(model, num_context, NUM_CANVAS), is_canvas)
    assert torch.equal(run(model, new_cache(CONFIG), tokens, num_context, 0), dense)  # type: ignore[arg-type]
    cache, cut = new_cache(CONFIG), num_context // 2
    run(model, cache, tokens[:cut], cut, 0) if cut else None
    second = run(model, cache, tokens, num_context, cut)
    assert torch.equal(second, dense[cut:])  # type: ignore[arg-type]


@torch.inference_mode()
def test_a_canvas_row_has_the_scalars_of_the_decoder(model: DiffusionGemma) -> None:
    tokens = token_ids(12)
    before = run(model, new_cache(CONFIG), tokens, 4, 0)
    for layer in model.layers:
        layer.canvas_scalar.data.mul_(2.0)  # type: ignore[union-attr, operator]
    after = run(model, new_cache(CONFIG), tokens, 4, 0)
    for layer in model.layers:
        layer.canvas_scalar.data.div_(2.0)  # type: ignore[union-attr, operator]
    assert torch.equal(before[:4], after[:4])  # type: ignore[index]
    assert not torch.equal(before[4:], after[4:])  # type: ignore[index]


@torch.inference_mode()
def test_soft_embeddings_and_logits_of_a_row_do_not_depend_on_other_rows(model: DiffusionGemma) -> None:
    hidden = torch.randn(37, CONFIG.dim, generator=torch.Generator().manual_seed(0))
    logits = model.logits(hidden)
    assert float(logits.abs().max()) < 30
    soft = model.soft_embedding(logits)
    for start, end in ((0, 1), (5, 9), (20, 37)):
        assert torch.equal(model.logits(hidden[start:end]), logits[start:end])
        assert torch.equal(model.soft_embedding(logits[start:end]), soft[start:end])
    certain = torch.full((2, CONFIG.vocab_size), -torch.inf)
    certain[0, 5] = certain[1, 9] = 0
    torch.testing.assert_close(model.soft_embedding(certain), model.embed(torch.tensor([5, 9])))


@torch.inference_mode()
def test_experts_of_a_row_do_not_depend_on_other_rows(model: DiffusionGemma) -> None:
    experts = model.layers[0].moe
    assert isinstance(experts, GemmaExperts)
    x, residual = torch.randn(2, 37, CONFIG.dim, generator=torch.Generator().manual_seed(0))
    together = experts.routed(x, residual)
    for start, end in ((0, 1), (5, 9), (20, 37)):
        assert torch.equal(experts.routed(x[start:end], residual[start:end]), together[start:end])


def test_proportional_rotation_leaves_most_angles_at_zero() -> None:
    gemma = GemmaConfig((True,), 8, full_head_dim=512, full_kv_heads=2)
    found = proportional_frequencies(gemma)
    assert found.shape == (256,)
    assert float(found[0]) == 1.0
    assert float(found[63]) == pytest.approx(1e6 ** -(126 / 512))
    assert not found[64:].any()


def test_layers_with_other_heads_share_the_slots_of_the_cache() -> None:
    store = torch.arange(24.0).view(2, 1, 12)
    assert heads_of(store, torch.zeros(1, 2, 4)).tolist() == store[:, 0, :8].view(2, 2, 4).tolist()
    heads_of(store, torch.zeros(1, 2, 4))[1, 1, 3] = -1
    assert float(store[1, 0, 7]) == -1


@pytest.mark.parametrize(
    "changes", [{"window": 1}, {"full_head_dim": 7}, {"full_kv_heads": 0}, {"full_partial_rotary": 0.0}]
)
def test_sizes_that_cannot_be_built_are_refused(changes: dict[str, float]) -> None:
    sizes: dict[str, object] = {"is_full": (True,), "window": 8, "full_head_dim": 8, "full_kv_heads": 1}
    with pytest.raises(CheckpointRefused):
        GemmaConfig(**{**sizes, **changes})  # type: ignore[arg-type]


@torch.inference_mode()
def test_soft_embeddings_are_added_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the vocabulary that are each near 1 % of the sum are not rounded away in bf16."""
    monkeypatch.setattr("quicksilver.model.gemma._VOCAB_CHUNK", 1)
    network = random_model(CONFIG).bfloat16()
    assert isinstance(network, DiffusionGemma)
    network.tokens.weight.fill_(1.0)
    logits = torch.randn(3, CONFIG.vocab_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = network.soft_embedding(logits)
    total = logits.float().softmax(-1).bfloat16().double().sum(-1, keepdim=True)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), (total * CONFIG.dim**0.5).expand_as(found), rtol=2**-7, atol=0)
