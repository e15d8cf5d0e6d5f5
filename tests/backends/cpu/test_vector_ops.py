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
from quicksilver.backends.cpu.vector_ops import make_key_scores, make_value_sum, max_of, sum_of, sum_of_squares


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
def test_scores_and_sums_of_strided_keys(num_vectors: int) -> None:
    key_scores, value_sum = make_key_scores(num_vectors), make_value_sum(num_vectors)

    @inner
    def run(q, keys, scores, out):  # type: ignore[no-untyped-def]
        stride = 4 * keys.shape[1]
        key_scores(address_of(q), address_of(keys), stride, len(keys), address_of(scores), np.int64(0))
        # The address to prefetch from may be outside the memory of the process.
        value_sum(address_of(scores), 0, address_of(keys), stride, len(keys), address_of(out), np.int64(1) << 40)

    head_dim = 16 * num_vectors
    for count in (7, 16, 37):
        q, keys, out = random(head_dim), random(count, head_dim + 5), random(head_dim)
        scores, before = np.zeros(count, np.float32), out.copy()
        run(q, keys, scores, out)
        assert np.allclose(scores, keys[:, :head_dim] @ q, rtol=1e-4, atol=1e-4)
        assert np.allclose(out, before + scores @ keys[:, :head_dim], rtol=1e-4, atol=1e-3)


def test_a_block_of_keys_has_the_bits_of_single_keys() -> None:
    """The order of additions must not depend on how many keys are scored in one call."""
    key_scores = make_key_scores(4)

    @inner
    def run(q, keys, scores):  # type: ignore[no-untyped-def]
        key_scores(address_of(q), address_of(keys), 256, len(keys), address_of(scores), np.int64(0))

    q, keys = random(64), random(37, 64)
    together, apart = np.zeros((2, 37), np.float32)
    run(q, keys, together)
    for i in range(37):
        run(q, keys[i : i + 1], apart[i : i + 1])
    assert np.array_equal(together, apart)


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


def test_scores_accumulate_on_request() -> None:
    key_scores = make_key_scores(1)

    @inner
    def run(q, keys, scores, accumulate):  # type: ignore[no-untyped-def]
        key_scores(address_of(q), address_of(keys), 64, len(keys), address_of(scores), accumulate)

    q, keys, scores = random(16), random(19, 16), np.ones(19, np.float32)
    run(q, keys, scores, 1)
    assert np.allclose(scores, 1 + keys @ q, rtol=1e-4, atol=1e-5)
