"""Where kernels run in tests: on a GPU, else in Triton's interpreter. To be asked before Triton is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import torch


def refusal() -> str | None:
    """Why no kernel can run here; None where one can. Without a GPU it turns the interpreter on."""
    if find_spec("triton") is None:
        return "needs Triton"
    if torch.cuda.is_available():
        return None
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # It turns arrays of one element into numbers.
    is_refused = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 4)
    return "Triton's interpreter does not run on numpy 2.4 and later" if is_refused else None
