"""KV pages: allocation, reference counts and the prefix cache. No torch.

A page is in one of three states: free, held (reference count > 0), or idle, which means cached under its prefix hash
and not held. If no free page is left, idle pages are evicted, least recently used first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

from quicksilver.adapters import AdapterRef
from quicksilver.backends.base import Sequence


def salt_hash(tenant: str, adapter: AdapterRef | None = None) -> bytes:
    """The first hash of a chain: tenants never share pages, nor do adapters with different weights."""
    salt = hashlib.sha256(b"quicksilver prefix\0" + tenant.encode()).digest()
    return salt if adapter is None else hashlib.sha256(b"adapter\0" + salt + adapter.id.encode()).digest()


def page_hash(previous: bytes, token_ids: Seq[int]) -> bytes:
    """SHA-256 of the previous hash and this page's tokens, so a hash identifies a whole prefix."""
    return hashlib.sha256(previous + array("q", token_ids).tobytes()).digest()


def prefix_hashes(sequence: Sequence, page_size: int, num_tokens: int) -> list[bytes]:
    """Hashes of the full pages within the first `num_tokens` tokens. `sequence.hashes` keeps the chain, so each page
    is hashed once. Empty if KV depends on the whole text."""
    num_tokens = 0 if sequence.dialect.is_full else num_tokens
    while (len(sequence.hashes) + 1) * page_size <= num_tokens:
        start = len(sequence.hashes) * page_size
        request = sequence.request
        previous = sequence.hashes[-1] if sequence.hashes else salt_hash(request.tenant, request.adapter)
        sequence.hashes.append(page_hash(previous, sequence.tokens[start : start + page_size]))
    return sequence.hashes[: num_tokens // page_size]


class PagePool:
    """Works on page ids; the memory belongs to `PagedCache`."""

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
        """`count` pages with one reference each; None if there are not enough."""
        if count > self.num_free:
            return None
        return [self._take() for _ in range(count)]

    def share(self, hashes: Seq[bytes]) -> list[int]:
        """The pages of the longest cached prefix of `hashes`, with one more reference each."""
        found = []
        for key in hashes:
            page = self._page_of.get(key)
            if page is None:
                break
            self._hold(page)
            found.append(page)
        return found

    def publish(self, page: int, key: bytes) -> None:
        """Caches a held page under a prefix hash. The page must be full and final. An existing entry stays."""
        self._check_held(page)
        if key not in self._page_of and page not in self._hash_of:
            self._page_of[key] = page
            self._hash_of[page] = key

    def release(self, pages: Seq[int]) -> None:
        """Drops one reference to each page. Last pages first, so that the beginning of a prefix is evicted last."""
        for page in reversed(pages):
            self._check_held(page)
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._unhold(page)

    def clear_cache(self) -> None:
        """Empties the prefix cache: idle pages become free, held pages stay held."""
        self._page_of.clear()
        self._hash_of.clear()
        self._free.extend(self._idle)
        self._idle.clear()

    def _check_held(self, page: int) -> None:
        """Not an `assert`: under `python -O` a page would pass to another request while its text is still used."""
        if self._refs[page] <= 0:
            raise RuntimeError(f"page {page} is not held: it was released twice")

    def _unhold(self, page: int) -> None:
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
