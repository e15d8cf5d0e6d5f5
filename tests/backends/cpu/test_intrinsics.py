"""Intrinsics of compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner


def test_exp_is_within_a_few_ulp_and_keeps_nan() -> None:
    @inner
    def run(x, out):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            out[i] = exp32(x[i])

    x = np.linspace(-87, 88, 40001).astype(np.float32)
    out = np.zeros_like(x)
    run(x, out)
    assert np.allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)
    run(np.array([np.nan, -np.inf, 0], np.float32), out)
    assert np.isnan(out[0])
    assert 0 <= out[1] < 1e-37
    assert out[2] == 1


def test_an_address_is_that_of_the_first_element() -> None:
    @inner
    def run(x):  # type: ignore[no-untyped-def]
        return address_of(x)

    x = np.zeros((3, 5), np.float32)
    assert run(x) == x.ctypes.data
    assert run(x[1:]) == x.ctypes.data + 20
