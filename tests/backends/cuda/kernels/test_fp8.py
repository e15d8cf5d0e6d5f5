"""fp8 weights and fp8 activations equal their dequantised values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl

from tests.support import fp8_checks as checks
from tests.support import graph_checks as graphs
from tests.support.linear_checks import LayerShape

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
NARROWEST = LayerShape((1152, 576), (1, 1, 128))


@pytest.mark.parametrize("has_canvas", [False, True])
def test_a_network_on_fp8_weights_equals_its_dequantised_weights(has_canvas: bool) -> None:
    checks.check_fp8(graphs.TINIEST, 0, has_canvas)


@pytest.fixture
def _true_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds to fp8 as the GPU does. Triton's interpreter drops the carry if rounding overflows the mantissa."""
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
def test_a_network_on_fp8_activations_is_close_to_its_dequantised_weights(has_canvas: bool) -> None:
    checks.check_fp8(checks.TINIEST_FP8, 0, has_canvas)


@pytest.mark.usefixtures("_true_fp8")
@pytest.mark.parametrize("rows", [16, 32])
def test_linears_with_fp8_inputs_equal_their_dequantised_inputs(rows: int) -> None:
    checks.check_fp8_qkv(0, NARROWEST, rows)
    checks.check_fp8_ffn(0, NARROWEST, rows)


@pytest.mark.usefixtures("_true_fp8")
@pytest.mark.parametrize("k", [96, 128])
def test_fp8_head_equals_its_dequantised_weights(k: int) -> None:
    checks.check_fp8_head(150, k)
