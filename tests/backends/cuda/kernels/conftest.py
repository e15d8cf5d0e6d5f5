"""Kernels run on a GPU if there is one, else in Triton's interpreter. Without Triton their tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.triton_interpreter import refusal

# Modules that do not import Triton.
WITHOUT_TRITON = {"test_int4_packing.py", "test_layer_fused.py", "test_layer_fused_shape.py"}

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if refusal() is not None and path.name not in WITHOUT_TRITON
]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield
