"""Pages in fp16: what is written is read back, and scores equal dot products in a fixed order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.model.attention import PagedCache
from tests.model.build import small_config

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.kv_page import (
    make_page_scores,
    pages_of,
    round_to_half,
    scatter_halves,
    span_scores,
    write_halves,
)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_rows_are_rounded_in_place_and_written_in_both_layouts() -> None:
    @inner
    def run(x, row, column):  # type: ignore[no-untyped-def]
        round_to_half(address_of(x), np.int64(48))
        write_halves(address_of(x), np.int64(48), address_of(row))
        scatter_halves(address_of(x), np.int64(48), address_of(column), np.int64(2 * column.shape[1]))

    x = random(50)
    x[3], x[4], x[5] = np.nan, np.inf, 1e-9
    wanted = x[:48].astype(np.float16)
    rest, row, column = x[48:].copy(), np.zeros(50, np.float16), np.zeros((50, 7), np.float16)
    run(x, row.view(np.int16), column.view(np.int16))
    assert np.array_equal(x[:48], wanted.astype(np.float32), equal_nan=True)
    assert np.array_equal(x[48:], rest)
    assert np.array_equal(row[:48], wanted, equal_nan=True)
    assert not row[48:].any()
    assert np.array_equal(column[:48, 0], wanted, equal_nan=True)
    assert not column[48:].any()
    assert not column[:, 1:].any()


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("page_size", [16, 32])
def test_scores_of_16_keys_have_the_same_bits_with_other_heads(head_dim: int, page_size: int) -> None:
    one_head, three_heads = make_page_scores(1), make_page_scores(3)

    @inner
    def run(q, keys, apart, together, ahead):  # type: ignore[no-untyped-def]
        stride, out = 2 * keys.shape[1], 4 * together.shape[1]
        for i in range(3):
            own = address_of(apart[i])
            one_head(address_of(q[i]), 0, address_of(keys), stride, q.shape[1], own, out, ahead)
        three_heads(
            address_of(q), 4 * q.shape[1], address_of(keys), stride, q.shape[1], address_of(together), out, ahead
        )

    q, keys = random(3, head_dim), random(head_dim, page_size).astype(np.float16)
    apart, together = np.zeros((2, 3, 20), np.float32)
    run(q, keys.view(np.int16), apart, together, 1 << 40)  # no memory of the process: a prefetch from there is harmless
    assert np.array_equal(apart, together)
    assert np.allclose(together[:, :16], q @ keys[:, :16].astype(np.float32), rtol=1e-4, atol=1e-4)
    assert not together[:, 16:].any()


@pytest.mark.parametrize("head_dim", [16, 48, 64, 128])
def test_scores_of_a_span_have_the_bits_of_scores_in_a_page(head_dim: int) -> None:
    page_scores = make_page_scores(1)

    @inner
    def run(q, page, rows, in_page, in_span):  # type: ignore[no-untyped-def]
        out, count = address_of(in_page), len(in_span)
        page_scores(address_of(q), 0, address_of(page), 2 * page.shape[1], len(q), out, 0, address_of(page))
        stride = 4 * rows.shape[1]
        span_scores(address_of(q), address_of(rows), stride, count, len(q), address_of(in_span))

    q, page = random(head_dim), random(head_dim, 16).astype(np.float16)
    rows = np.concatenate((page.T.astype(np.float32), random(16, 5)), axis=1)
    in_page, in_span = np.zeros(16, np.float32), np.zeros(13, np.float32)
    run(q, page.view(np.int16), rows, in_page, in_span)
    assert np.any(in_span)
    assert np.array_equal(in_page[:13], in_span)


def test_pages_are_views_of_the_cache() -> None:
    cache = PagedCache.allocate(small_config(), 3, 16, "cpu", torch.float16)
    keys, values = pages_of(cache)
    keys[1, 2, 0, 5] = np.array(1.5, np.float16).view(np.int16)
    assert keys.shape == values.shape == (len(cache.k), 3, cache.k.shape[2], 16 * cache.k.shape[3])
    assert cache.k.count_nonzero() == 1
    assert cache.k.max() == 1.5
    assert not cache.v.any()
