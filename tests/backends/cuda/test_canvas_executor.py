"""DiffusionGemma on captured graphs equals plain torch: prompts, canvas steps, and several canvases at once."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal, with_exact_fp8

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from triton.runtime import interpreter

from tests.support.gemma_checks import TINY_GEMMA, check_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("scheme", ["bfloat16", "fp8"])
def test_steps_of_two_canvases_equal_plain_torch(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", with_exact_fp8(interpreter._convert_float))
    with torch.inference_mode():
        check_steps(TINY_GEMMA, 8, scheme)
