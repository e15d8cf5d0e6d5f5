"""DiffusionGemma at its real widths on a GPU: attention, and forwards on kernels and graphs against plain torch."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("window", [0, 60])
@pytest.mark.parametrize("heads", [(16, 8, 256), (16, 2, 512)])
@torch.inference_mode()
def test_window_attention_equals_plain_torch(heads: tuple[int, int, int], window: int) -> None:
    from tests.support.gemma_checks import check_window_attention

    for seed in range(4):
        check_window_attention(heads, window, seed)


@pytest.mark.parametrize("scheme", ["bfloat16", "fp8"])
@torch.inference_mode()
def test_steps_of_two_canvases_equal_plain_torch(scheme: str) -> None:
    from tests.support.gemma_checks import WIDE_GEMMA, check_steps

    check_steps(WIDE_GEMMA, 256, scheme)
