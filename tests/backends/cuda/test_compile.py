"""Run-time compilation of CUDA source."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda import compile as compile_module
from quicksilver.backends.cuda.compile import CudaError, compile_binary


def test_without_nvrtc_the_error_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: None)
    with pytest.raises(CudaError, match="libnvrtc is missing"):
        compile_binary("layer_fused", {}, (9, 0))
