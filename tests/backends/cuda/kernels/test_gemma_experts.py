"""Experts for hundreds of rows, and the router of DiffusionGemma, equal plain torch."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal, with_exact_fp8

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from triton.runtime import interpreter

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles, group_pairs
from quicksilver.backends.cuda.kernels.gemma_experts import expert_parts, tile_height
from quicksilver.backends.cuda.kernels.gemma_router import choose_experts, split_router
from quicksilver.backends.cuda.kernels.gemma_rows import Rows
from quicksilver.backends.cuda.kernels.gemma_weights import weight_of
from quicksilver.backends.cuda.kernels.row_kernels import quantise_rows
from quicksilver.model.experts import MoeConfig
from quicksilver.model.moe import route
from tests.support.gemma_checks import rounded_experts
from tests.support.kernel_checks import expect_close, here

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
EXPERTS, TOP_K, DIM = 5, 2, 48


@pytest.fixture(autouse=True)
def _exact_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", with_exact_fp8(interpreter._convert_float))


@pytest.mark.parametrize("ffn_dim", [16, 80])
@pytest.mark.parametrize("height", [16, 32])
def test_fp8_experts_equal_experts_of_rounded_rows(ffn_dim: int, height: int) -> None:
    """With more pairs of an expert than a tile has, and fewer; with one group of columns, and two."""
    torch.manual_seed(ffn_dim)
    num_rows, place = 41, here()
    x = place.normal(num_rows, DIM)
    gate_up, down = place.normal(EXPERTS, 2 * ffn_dim, DIM) * 0.3, place.normal(EXPERTS, DIM, ffn_dim) * 0.3
    chosen = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(num_rows)]).to(place.device)
    weights = torch.rand(num_rows, TOP_K, device=place.device)
    tiles = ExpertTiles.allocate(num_rows, EXPERTS, num_rows * TOP_K, height, place.device)
    group_pairs(chosen, EXPERTS, tiles)
    rounded = [weight_of(matrix, "fp8") for matrix in (gate_up, down)]
    parts = expert_parts(Rows(*quantise_rows(x)), TOP_K, *rounded, tiles, "gelu_tanh", torch.float32)
    wide = [(one.w.float() * one.scale[..., None]).to(x.dtype) for one in rounded if one.scale is not None]
    wanted = rounded_experts(x, chosen, weights, wide[0], wide[1], "gelu_tanh")
    found = (parts.view(num_rows, TOP_K, DIM) * weights[..., None]).sum(1)
    expect_close(found, wanted, 1e-5 if place.dtype is torch.float32 else 2e-2)


def test_the_router_chooses_as_plain_torch() -> None:
    """Scores, weights, and the list of every expert; rows that are not numbers choose experts that exist."""
    torch.manual_seed(1)
    place, num_rows = here(), 37
    x, router, scale = place.normal(num_rows, 300), place.normal(12, 300), place.normal(300)
    expert_scale = torch.rand(12, device=place.device) + 0.5
    x[7, 3] = torch.nan
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1) + 1e-6)
    tiles = ExpertTiles.allocate(num_rows, 12, num_rows * 3, 16, place.device)
    weights = choose_experts(x, inverse, split_router(router, scale), expert_scale, 3, tiles)
    scores = wide * inverse[:, None] * scale.float() * 300**-0.5 @ router.float().t()
    chosen, wanted = route(scores, None, MoeConfig(12, 3, 16))
    fine = [row for row in range(num_rows) if row != 7]
    expect_close(weights[fine], (wanted * expert_scale[chosen])[fine], 1e-4)
    found = {(pair // 3, expert) for expert, end in _lists(tiles).items() for pair in end}
    assert {pair for pair in found if pair[0] != 7} == {(r, e) for r in fine for e in chosen[r].tolist()}
    assert sum(len(pairs) for pairs in _lists(tiles).values()) == num_rows * 3


def _lists(tiles: ExpertTiles) -> dict[int, list[int]]:
    """The pairs of every expert."""
    found: dict[int, list[int]] = {}
    for expert, first, end, _ in tiles.records[: int(tiles.num_tiles)].tolist():
        found.setdefault(expert, []).extend(tiles.pairs[expert, first:end].tolist())
    return found


def test_the_parts_of_a_router_add_up_to_fp32() -> None:
    router, scale = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    whole = router.double() * scale.double() / 8
    assert split_router(router, scale).shape == (12, 64)
    parts = split_router(router, scale).double().view(3, 4, 64).sum(0)
    torch.testing.assert_close(parts, whole, rtol=2**-22, atol=0)


def test_tiles_are_as_high_as_experts_have_pairs() -> None:
    """A canvas of 256 rows over 128 experts, and eight of them."""
    assert [tile_height(rows, 8, 128) for rows in (16, 256, 512, 2048)] == [16, 32, 64, 128]
