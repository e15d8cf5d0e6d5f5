"""KV pages: allocate, share by prefix, free. No torch.

A page is free, held (refcount > 0), or idle: cached under its prefix hash with nobody holding it. Idle pages are handed
out again, oldest first, when no free page is left. Every page is in exactly one of the three states.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

from quicksilver.backends.sequence import Sequence


def salt_hash(tenant: str) -> bytes:
    """The start of a tenant's hash chain: equal text under another tenant never shares a page."""
    return hashlib.sha256(b"quicksilver prefix\0" + tenant.encode()).digest()


def page_hash(previous: bytes, token_ids: Seq[int]) -> bytes:
    """SHA-256 over the chain so far and this page's tokens, so a hash names a whole prefix."""
    return hashlib.sha256(previous + array("q", token_ids).tobytes()).digest()


def prefix_hashes(sequence: Sequence, page_size: int, num_tokens: int) -> list[bytes]:
    """Hashes of the full pages within the first `num_tokens` tokens. `sequence.hashes` keeps the chain, so each page
    is hashed once."""
    while (len(sequence.hashes) + 1) * page_size <= num_tokens:
        start = len(sequence.hashes) * page_size
        previous = sequence.hashes[-1] if sequence.hashes else salt_hash(sequence.request.tenant)
        sequence.hashes.append(page_hash(previous, sequence.tokens[start : start + page_size]))
    return sequence.hashes[: num_tokens // page_size]


class PagePool:
    """Bookkeeping only: page ids, never memory."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # popped from the end: low ids first, often contiguous
        self._refs = [0] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free) + len(self._idle)

    @property
    def num_cached(self) -> int:
        return len(self._page_of)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages held once each, or None (and nothing taken) when there are not enough."""
        if count > self.num_free:
            return None
        return [self._take() for _ in range(count)]

    def share(self, hashes: Seq[bytes]) -> list[int]:
        """Pages of the longest cached prefix of `hashes`, each held once more."""
        found = []
        for key in hashes:
            page = self._page_of.get(key)
            if page is None:
                break
            self._hold(page)
            found.append(page)
        return found

    def publish(self, page: int, key: bytes) -> None:
        """Make a held page, full and final, findable by prefix. The first page under a key stays."""
        assert self._refs[page] > 0, "only a held page can be published"
        if key not in self._page_of and page not in self._hash_of:
            self._page_of[key] = page
            self._hash_of[page] = key

    def release(self, pages: Seq[int]) -> None:
        """Give up one hold on each page; cached ones become idle, the others free. Last pages first, so that the
        front of a prefix outlives its end."""
        for page in reversed(pages):
            assert self._refs[page] > 0, f"page {page} released twice"
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._let_go(page)

    def forget(self) -> None:
        """Drop the prefix cache: idle pages become free; held pages stay held."""
        self._page_of.clear()
        self._hash_of.clear()
        self._free.extend(self._idle)
        self._idle.clear()

    def _let_go(self, page: int) -> None:
        if page in self._hash_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def _hold(self, page: int) -> None:
        self._refs[page] += 1
        self._idle.pop(page, None)

    def _take(self) -> int:
        page = self._free.pop() if self._free else self._evict()
        self._refs[page] = 1
        return page

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._page_of[self._hash_of.pop(page)]
        return page
