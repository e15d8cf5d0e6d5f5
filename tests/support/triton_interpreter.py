"""Where kernels run in tests: on a GPU, else in Triton's interpreter. To be asked before Triton is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

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


def with_exact_fp8(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's conversion of floats, with torch's from fp32 to e4m3: its own one loses the carry where a
    mantissa rounds up to a power of two."""

    def exact(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source.name, target.name) != ("fp32", "fp8e4nv"):
            return convert(values, source, target, rounding)
        wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)

    return exact
