"""Attention of one row over pages and a span equals softmax(q k) v."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.attention import KvHead, RowArrays, attend

PAGE_SIZE = 16


@pytest.mark.parametrize(("group", "head_dim"), [(2, 16), (3, 48), (1, 64), (3, 64), (7, 64), (2, 128)])
@pytest.mark.parametrize(("prefix_len", "span"), [(0, (0, 3)), (41, (0, 0)), (32, (1, 3))])
def test_prefix_and_span_are_attended_in_order(
    group: int, head_dim: int, prefix_len: int, span: tuple[int, int]
) -> None:
    random = np.random.default_rng(0)
    cache = random.standard_normal((2, 6 * PAGE_SIZE, head_dim)).astype(np.float32)
    batch = random.standard_normal((2, 3, head_dim)).astype(np.float32)
    q, out = random.standard_normal((group, head_dim)).astype(np.float32), np.zeros((group, head_dim), np.float32)
    pages = np.array([[5, 0, 3]])
    one = np.zeros(1, np.int64)
    rows = RowArrays(one, one + prefix_len, one + span[0], one + span[1], one, pages, PAGE_SIZE)
    keys, values = (KvHead(cache[i].ctypes.data, 4 * head_dim, batch[i].ctypes.data, 4 * head_dim) for i in range(2))
    scores = np.zeros((group, 3 * PAGE_SIZE + 3), np.float32)
    attend(0, (group, head_dim), (q.ctypes.data, out.ctypes.data), rows, (keys, values), scores)
    slots = (pages[0][:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).ravel()[:prefix_len]
    seen_keys, seen_values = (np.concatenate((cache[i][slots], batch[i][span[0] : span[1]])) for i in range(2))
    wanted = q @ seen_keys.T / np.sqrt(head_dim)
    weights = np.exp(wanted - wanted.max(1, keepdims=True))
    assert np.allclose(out, weights / weights.sum(1, keepdims=True) @ seen_values, rtol=1e-4, atol=1e-4)
