"""DiffusionGemma on captured graphs equals plain torch: prompts, canvas steps, and several canvases at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.triton_interpreter import refusal, with_exact_fp8

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from triton.runtime import interpreter

from quicksilver.backends.cuda.canvas_executor import CanvasExecutor
from quicksilver.backends.cuda.kernels import gemma_weights
from quicksilver.errors import InvalidRequest
from tests.support.gemma_checks import TINY_GEMMA, check_requests, check_steps, gemma_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("scheme", ["bfloat16", "fp8"])
def test_steps_of_two_canvases_equal_plain_torch(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", with_exact_fp8(interpreter._convert_float))
    with torch.inference_mode():
        check_steps(TINY_GEMMA, 8, scheme)


def test_requests_of_every_kind_equal_plain_torch() -> None:
    check_requests(TINY_GEMMA)


def test_a_network_that_the_kernels_cannot_run_is_refused_by_name() -> None:
    config = replace(TINY_GEMMA, vocab_size=96)
    model = gemma_of(config)
    assert "not 16-bit" in str(gemma_weights.refusal(model))
    model = model.half()
    assert gemma_weights.refusal(model) is None
    model.weight_format = "int4"
    assert "int4" in str(gemma_weights.refusal(model))
    small = gemma_of(replace(config, head_dim=8)).half()
    assert "head size" in str(gemma_weights.refusal(small))


def test_adapters_of_single_requests_are_refused() -> None:
    assert not CanvasExecutor.supports_adapters
    with pytest.raises(InvalidRequest, match="adapters"):
        CanvasExecutor.convert_adapter(object(), object())  # type: ignore[arg-type]
