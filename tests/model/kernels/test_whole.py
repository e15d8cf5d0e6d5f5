"""A network in one launch, in each of the ways it can be told to run: all equal the plain network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl

from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels import resident
from quicksilver.model.kernels.fp8 import Inputs
from tests import graph_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PLAIN = ModelConfig("llama", 2, 32, 64, 2, 1, 32, 60, 256, tied_head=True)
WIDE = replace(PLAIN, num_layers=1, dim=192, ffn_dim=192, num_heads=6)
"""Depths of three times 64."""
BIASED = replace(PLAIN, family="qwen2", qkv_bias=True)


@pytest.mark.parametrize(
    ("config", "shared_rows", "kinds"),
    [
        (PLAIN, 16, ("one", "canvas")),
        (PLAIN, 16, ("chunk", "canvas")),
        (BIASED, 32, ("one", "canvas", "branches")),
        (PLAIN, 32, ("chunk", "canvas")),
    ],
)
def test_every_way_equals_the_plain_network(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, shared_rows: int, kinds: tuple[str, ...]
) -> None:
    monkeypatch.setattr(resident, "SHARED_ROWS", shared_rows)
    checks.check_network(config, 0, True, kinds)


@pytest.mark.parametrize(("is_early", "kinds"), [(True, ("one", "canvas")), (False, ("chunk", "canvas"))])
def test_warps_can_share_the_depth(monkeypatch: pytest.MonkeyPatch, is_early: bool, kinds: tuple[str, ...]) -> None:
    monkeypatch.setattr(resident, "BY_WARPS", True)
    monkeypatch.setattr(resident, "EARLY", is_early)
    checks.check_network(WIDE, 0, True, kinds)


def test_fixed_products_ignore_company() -> None:
    checks.check_fixed_products_ignore_company(replace(PLAIN, num_layers=1), (14,))


@pytest.mark.parametrize("has_canvas", [False, True])
def test_fp8_weights_equal_what_they_stand_for(has_canvas: bool) -> None:
    checks.check_fp8(checks.TINIEST, 0, has_canvas)


@pytest.fixture
def _true_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter drops the carry where rounding to fp8 fills the last bit: rounded as the chip does it."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def exact(values, source, target, mode):  # type: ignore[no-untyped-def]
        if target != tl.float8e4nv or source != tl.float32:
            return convert(values, source, target, mode)
        wide = torch.from_numpy(np.ascontiguousarray(values).view(np.float32)).clamp(-448, 448)
        return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)

    monkeypatch.setattr(interpreter, "_convert_float", exact)


@pytest.mark.usefixtures("_true_fp8")
@pytest.mark.parametrize("has_canvas", [False, True])
def test_fp8_inputs_stay_near_what_they_stand_for(has_canvas: bool) -> None:
    checks.check_fp8(checks.TINIEST_ROUNDED, 0, has_canvas, Inputs.ROUNDED)
