"""Pages never leak and are never freed twice, whatever the order of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from quicksilver.engine.pages import PagePool, page_hash, salt_hash

NUM_PAGES = 12


class Pages(RuleBasedStateMachine):
    """A model of the pool: which pages each holder holds, and which hash names which page."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: list[list[int]] = []

    @rule(target=holders, count=st.integers(0, 5))
    def allocate(self, count: int) -> object:
        had_room = count <= self.pool.num_free
        pages = self.pool.allocate(count)
        assert (pages is not None) == had_room
        if pages is None:
            return multiple()
        others = {page for group in self.held for page in group}
        assert len(set(pages)) == count
        assert not others & set(pages), "a held page was handed out again"
        self.held.append(pages)
        return pages

    @rule(pages=holders, key=st.integers(0, 6))
    def publish(self, pages: list[int], key: int) -> None:
        if pages:
            self.pool.publish(pages[0], page_hash(salt_hash("t"), [key]))

    @rule(target=holders, keys=st.lists(st.integers(0, 6), max_size=3))
    def share(self, keys: list[int]) -> object:
        pages = self.pool.share([page_hash(salt_hash("t"), [key]) for key in keys])
        self.held.append(pages)
        return pages

    @rule(pages=consumes(holders))
    def release(self, pages: list[int]) -> None:
        self.held.remove(pages)
        self.pool.release(pages)

    @rule()
    def forget(self) -> None:
        self.pool.clear_cache()
        assert self.pool.num_cached == 0

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        held = {page for group in self.held for page in group}
        assert self.pool.num_free + len(held) == NUM_PAGES

    def teardown(self) -> None:
        for pages in self.held:
            self.pool.release(pages)
        assert self.pool.num_free == NUM_PAGES


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_page_released_twice_is_an_error() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(RuntimeError, match="released twice"):
        pool.release(pages)
    with pytest.raises(RuntimeError, match="not held"):
        pool.publish(pages[0], b"key")


def test_equal_text_of_two_tenants_shares_nothing() -> None:
    assert page_hash(salt_hash("a"), [1, 2]) != page_hash(salt_hash("b"), [1, 2])
    assert page_hash(salt_hash("a"), [1, 2]) == page_hash(salt_hash("a"), [1, 2])


def test_the_oldest_idle_page_is_reused_first() -> None:
    pool = PagePool(2)
    for key in (1, 2):
        pages = pool.allocate(1)
        assert pages is not None
        pool.publish(pages[0], page_hash(salt_hash(""), [key]))
        pool.release(pages)
    pool.allocate(1)
    assert pool.share([page_hash(salt_hash(""), [1])]) == []
    assert len(pool.share([page_hash(salt_hash(""), [2])])) == 1
