"""Options of the compiled code: no reference counts, no allocation."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from numba.core.errors import NumbaError

from quicksilver.backends.cpu.jit import inner


@inner
def _sum_of_rows(table: np.ndarray) -> float:
    total = 0.0
    for i in range(len(table)):
        row = table[i]
        for value in row:
            total += value
    return total


@inner
def _allocates(count: int) -> float:
    return float(np.zeros(count)[0])


def test_compiled_code_counts_no_references() -> None:
    assert _sum_of_rows(np.ones((3, 4))) == 12
    code = _sum_of_rows.inspect_llvm(_sum_of_rows.signatures[0])
    assert "NRT_incref" not in code
    assert "NRT_decref" not in code


def test_compiled_code_cannot_allocate() -> None:
    with pytest.raises(NumbaError):
        _allocates(3)
