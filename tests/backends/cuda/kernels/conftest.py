"""Kernels run on a GPU where there is one, else in Triton's interpreter; without Triton the folder is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.triton_interpreter import refusal

collect_ignore_glob = ["test_*.py"] if refusal() is not None else []


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield
