"""Kernels run on a GPU where there is one, else in Triton's interpreter; without Triton the folder is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _interpreter_works() -> bool:
    """It turns arrays of one element into numbers, which numpy refuses from 2.4 on."""
    return tuple(int(part) for part in np.__version__.split(".")[:2]) < (2, 4)


collect_ignore_glob: list[str] = []
if find_spec("triton") is None or not (torch.cuda.is_available() or _interpreter_works()):
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield
