"""The router in one launch equals the eager one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels.linears import Norm
from quicksilver.backends.cuda.kernels.router import Router, allocate_router, route_rows
from quicksilver.model.experts import MoeConfig
from tests.support import sparse_checks as checks
from tests.support.kernel_checks import here

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
ROUTERS = {
    "softmax": checks.SOFTMAX,
    "grouped": checks.GROUPED,
    "three groups of four": replace(checks.GROUPED, num_experts=12, top_k=3, num_groups=3, top_groups=2),
    "not normalised": MoeConfig(20, 4, 32, is_normalised=False),
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("num_rows", [1, 37, 70])
def test_the_choice_is_that_of_the_eager_router(name: str, num_rows: int) -> None:
    checks.check_router(ROUTERS[name], num_rows, 48)


@pytest.mark.parametrize("name", ["softmax", "grouped"])
def test_unused_rows_choose_no_expert(name: str) -> None:
    checks.check_unused_rows(ROUTERS[name], 48)


@pytest.mark.parametrize("moe", [checks.SOFTMAX, replace(checks.GROUPED, has_bias=False)], ids=["softmax", "grouped"])
def test_ties_go_to_the_lower_index(moe: MoeConfig) -> None:
    place = here()
    out = allocate_router(3, 32, moe, 16, place.dtype, place.device)
    matrix = torch.ones(moe.num_experts, 32, device=place.device, dtype=place.dtype)
    gain = torch.ones(32, device=place.device, dtype=place.dtype)
    route_rows(place.normal(3, 32), Norm(gain, 1e-6), Router(matrix, None, moe), out)
    assert out.chosen[:, :2].tolist() == [[0, 1]] * 3


def test_rows_that_are_not_finite_stay_within_the_buffers() -> None:
    place, moe = here(), checks.SOFTMAX
    x = place.normal(4, 32)
    x[1] = torch.nan
    out = allocate_router(4, 32, moe, 16, place.dtype, place.device)
    gain = torch.ones(32, device=place.device, dtype=place.dtype)
    route_rows(x, Norm(gain, 1e-6), Router(place.normal(6, 32), None, moe), out)
    assert bool((out.chosen >= 0).all())
    assert bool((out.chosen < moe.num_experts).all())
    assert int(out.tiles.records[: int(out.tiles.num_tiles), 2].max()) <= 4
