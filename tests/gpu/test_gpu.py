"""All checks at full sizes on a GPU; skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

pytestmark = pytest.mark.gpu

HAS_GPU = torch.cuda.is_available() and find_spec("triton") is not None


def _checks() -> list[tuple[str, Callable[[], None]]]:
    if not HAS_GPU:
        return []
    from benchmarks.gpu_check import MODULES

    return [pair for checks in MODULES for pair in checks.gpu_checks()]


@pytest.mark.parametrize(("name", "check"), _checks(), ids=str)
def test_kernels_and_graphs_equal_their_references(name: str, check: Callable[[], None]) -> None:
    with torch.inference_mode():
        check()
    assert torch.cuda.is_available(), name
