"""All checks at true sizes on a GPU; skipped without one."""

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
    from tests import bias_checks, fp8_checks, graph_checks, kernel_checks, mask_checks, project_checks, tree_checks

    rooms = (kernel_checks, project_checks, graph_checks, tree_checks, bias_checks, mask_checks, fp8_checks)
    return [pair for checks in rooms for pair in checks.gpu_checks()]


@pytest.mark.parametrize(("name", "check"), _checks(), ids=str)
def test_kernels_and_graphs_equal_their_oracles(name: str, check: Callable[[], None]) -> None:
    with torch.inference_mode():
        check()
    assert torch.cuda.is_available(), name
