"""Attention of rows over pages and spans equals softmax(q k) v, bit for bit the same in any block."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.attention import KvHead, RowArrays, RowVectors, attend
from quicksilver.backends.cpu.llvm import LANES

PAGE_SIZE = 16


def in_pages(cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values, (2, slots, head_dim) in fp16, in the layout of `kv_page`: (pages, head_dim, page_size) and
    (pages, page_size, head_dim)."""
    keys, values = cache.reshape(2, -1, PAGE_SIZE, cache.shape[2])
    return np.ascontiguousarray(keys.transpose(0, 2, 1)), np.ascontiguousarray(values)


def kv_heads(memory: tuple[np.ndarray, np.ndarray], batch: np.ndarray) -> list[KvHead]:
    strides = [(part.strides[0], batch.strides[1]) for part in memory]
    return [KvHead(memory[i].ctypes.data, strides[i][0], batch[i].ctypes.data, strides[i][1]) for i in range(2)]


@pytest.mark.parametrize(("group", "head_dim"), [(2, 16), (3, 48), (1, 64), (3, 64), (7, 64), (2, 128), (7, 128)])
@pytest.mark.parametrize(("prefix_len", "span"), [(0, (0, 3)), (41, (0, 0)), (32, (1, 3))])
def test_prefix_and_span_are_attended_in_order(
    group: int, head_dim: int, prefix_len: int, span: tuple[int, int]
) -> None:
    random = np.random.default_rng(0)
    cache = random.standard_normal((2, 6 * PAGE_SIZE, head_dim)).astype(np.float16)
    memory = in_pages(cache)
    batch = random.standard_normal((2, 3, head_dim)).astype(np.float32)
    q, out = random.standard_normal((group, head_dim)).astype(np.float32), np.zeros((group, head_dim), np.float32)
    pages = np.array([[5, 0, 3]])
    one = np.zeros(1, np.int64)
    rows = RowArrays(one, one + prefix_len, one + span[0], one + span[1], one, pages, PAGE_SIZE)
    keys, values = kv_heads(memory, batch)
    scores = np.zeros((group, 4 * PAGE_SIZE + 3), np.float32)
    vectors = RowVectors(q.ctypes.data, 0), RowVectors(out.ctypes.data, 0)
    attend((0, 1), (group, head_dim), vectors, rows, (keys, values), scores)
    slots = (pages[0][:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).ravel()[:prefix_len]
    seen_keys, seen_values = (np.concatenate((cache[i][slots], batch[i][span[0] : span[1]])) for i in range(2))
    wanted = q @ seen_keys.T / np.sqrt(head_dim)
    weights = np.exp(wanted - wanted.max(1, keepdims=True))
    assert np.allclose(out, weights / weights.sum(1, keepdims=True) @ seen_values, rtol=1e-4, atol=1e-4)


# Rows of a canvas end their prefix at one position, those of a prompt at their own; the last case has both.
@pytest.mark.parametrize(
    "prefix_ends", [[39] * 5, [14, 15, 16, 17, 18], [31, 32, 33, 33, 33], [40, 3, 0, 17, 16]], ids=str
)
@pytest.mark.parametrize(("group", "head_dim"), [(2, 16), (3, 64), (2, 128)])
def test_rows_of_a_block_equal_rows_alone(group: int, head_dim: int, prefix_ends: list[int]) -> None:
    random, num_rows = np.random.default_rng(1), len(prefix_ends)
    cache = random.standard_normal((2, 6 * PAGE_SIZE, head_dim)).astype(np.float16)
    memory = in_pages(cache)
    batch = random.standard_normal((2, num_rows, head_dim)).astype(np.float32)
    q = random.standard_normal((num_rows, group, head_dim)).astype(np.float32)
    zero, number = np.zeros(num_rows, np.int64), np.arange(num_rows)
    rows = RowArrays(zero, np.array(prefix_ends), zero, number + 1, zero, np.array([[4, 1, 2]]), PAGE_SIZE)
    keys, values = kv_heads(memory, batch)
    scores = np.zeros((num_rows * group, max(prefix_ends) + num_rows + LANES), np.float32)

    def attended(blocks: list[tuple[int, int]]) -> np.ndarray:
        out = np.zeros((num_rows, group, head_dim), np.float32)
        for first, end in blocks:
            vectors = RowVectors(q[first].ctypes.data, q.strides[0]), RowVectors(out[first].ctypes.data, out.strides[0])
            attend((first, end), (group, head_dim), vectors, rows, (keys, values), scores)
        return out

    alone = attended([(row, row + 1) for row in range(num_rows)])
    assert np.any(alone)
    assert np.array_equal(attended([(0, num_rows)]), alone)
    assert np.array_equal(attended([(0, 2), (2, num_rows)]), alone)


@pytest.mark.parametrize(("group", "head_dim"), [(2, 16), (3, 48), (3, 64), (7, 64), (7, 128)])
def test_keys_of_the_batch_and_keys_in_pages_give_the_same_bits(group: int, head_dim: int) -> None:
    """A row attends to 37 keys. The last 0, 5, 21 or all of them are in the batch."""
    random, num_keys = np.random.default_rng(2), 37
    cache = random.standard_normal((2, 3 * PAGE_SIZE, head_dim)).astype(np.float16)
    memory, batch = in_pages(cache), cache[:, :num_keys].astype(np.float32)
    q = random.standard_normal((group, head_dim)).astype(np.float32)
    keys, values = kv_heads(memory, batch)
    scores, one = np.zeros((group, num_keys + LANES), np.float32), np.zeros(1, np.int64)

    def attended(num_in_batch: int) -> np.ndarray:
        out, prefix = np.zeros((group, head_dim), np.float32), num_keys - num_in_batch
        rows = RowArrays(one, one + prefix, one + prefix, one + num_keys, one, np.array([[0, 1, 2]]), PAGE_SIZE)
        vectors = RowVectors(q.ctypes.data, 0), RowVectors(out.ctypes.data, 0)
        attend((0, 1), (group, head_dim), vectors, rows, (keys, values), scores)
        return out

    in_pages_only = attended(0)
    assert np.any(in_pages_only)
    for num_in_batch in (5, 21, num_keys):
        assert np.array_equal(attended(num_in_batch), in_pages_only)
