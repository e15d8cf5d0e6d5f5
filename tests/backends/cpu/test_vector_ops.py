"""Vector loops equal numpy's results, for counts that are not multiples of a vector too."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.llvm import F16
from quicksilver.backends.cpu.vector_ops import make_value_sum, max_of, sum_of, sum_of_squares


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
def test_the_maximum_ignores_nan(count: int) -> None:
    @inner
    def run(x):  # type: ignore[no-untyped-def]
        return max_of(address_of(x), len(x))

    x = random(count) - 3
    assert run(x) == x.max()
    if count > 1:
        x[count // 2] = np.nan
        assert run(x) == np.nanmax(x)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 576])
def test_sums_of_any_length(count: int) -> None:
    @inner
    def run(x):  # type: ignore[no-untyped-def]
        return sum_of(address_of(x), np.int64(len(x))), sum_of_squares(address_of(x), np.int64(len(x)))

    x = random(count)
    assert np.allclose(run(x), (x.sum(), (x * x).sum()), rtol=1e-5, atol=1e-5)
    if count:
        x[count // 2] = np.nan
        assert np.isnan(run(x)).all()


@pytest.mark.parametrize("num_vectors", [1, 4, 8])
def test_weighted_sums_of_strided_values(num_vectors: int) -> None:
    value_sum = make_value_sum(num_vectors)

    @inner
    def run(weights, values, out):  # type: ignore[no-untyped-def]
        stride, start = 4 * values.shape[1], address_of(values)
        # The address to prefetch from may be outside the memory of the process.
        value_sum(address_of(weights), 0, start, stride, len(values), address_of(out), np.int64(1) << 40)

    head_dim = 16 * num_vectors
    for count in (7, 16, 37):
        weights, values, out = random(count), random(count, head_dim + 5), random(head_dim)
        before = out.copy()
        run(weights, values, out)
        assert np.allclose(out, before + weights @ values[:, :head_dim], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_vectors", [4, 8])
def test_sums_of_several_heads_have_the_bits_of_single_heads(num_vectors: int) -> None:
    one_head, three_heads = make_value_sum(num_vectors, kind=F16), make_value_sum(num_vectors, num_heads=3, kind=F16)

    @inner
    def run(weights, values, apart, together):  # type: ignore[no-untyped-def]
        start, stride, weight_stride = address_of(values), 2 * values.shape[1], 4 * weights.shape[1]
        for i in range(3):
            one_head(address_of(weights[i]), 0, start, stride, len(values), address_of(apart[i]), start)
        three_heads(address_of(weights), weight_stride, start, stride, len(values), address_of(together), start)

    weights, values = random(3, 19), random(19, 16 * num_vectors).astype(np.float16)
    apart, together = np.zeros((2, 3, 16 * num_vectors), np.float32)
    run(weights, values.view(np.int16), apart, together)
    assert np.array_equal(apart, together)
    assert np.allclose(together, weights @ values.astype(np.float32), rtol=1e-4, atol=1e-4)
